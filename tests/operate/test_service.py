"""The controller without HTTP: what the next one takes over, and what a slow or failing database loses."""

import asyncio
import threading

import pytest

from openmrc.errors import Error
from openmrc.fabric import Fabric
from openmrc.operate import records
from openmrc.operate import service as services
from openmrc.operate.service import Service
from openmrc.operate.store import Store
from tests.helpers.controllers import seen
from tests.helpers.labs import specification


@pytest.fixture(scope="module")
def fabric(tmp_path_factory):
    return Fabric.load(specification(tmp_path_factory.mktemp("fabric"), "served"))


@pytest.fixture
def opened(fabric, tmp_path):
    settings = services.Settings(confirmed_after_s=0.0)
    return lambda: Service(fabric, Store(f"sqlite:///{tmp_path / 'c.db'}", fabric.spec.name), settings)


def uplink(fabric, number=0):
    return fabric.paths("h0", "h4")[number].links[1]


async def see(service, fabric, broken):
    for src, dst in (("h0", "h4"), ("h4", "h0"), ("h0", "h8"), ("h4", "h8")):
        service.take(seen(fabric, src, dst, [broken]))
    await service.evaluate()


def test_a_controller_that_waited_goes_on_with_the_faults_of_the_one_before(fabric, opened):
    first_link, second_link = uplink(fabric), uplink(fabric, 1)

    async def both():
        first, second = opened(), opened()
        await first.take_lease()
        waits = asyncio.Event()
        lease = asyncio.create_task(second.take_lease(waiting=lambda _: waits.set()))
        await waits.wait()
        await see(first, fabric, first_link)
        [before] = first.faults.ranked()
        await first.close()
        await lease
        assert second.faults.ranked() == [before]
        await see(second, fabric, second_link)
        numbers = {fault.id for fault in second.faults.ranked()}
        await second.close()
        assert before.id in numbers
        assert len(numbers) == 2

    asyncio.run(both())


def test_losses_are_evaluated_at_once_and_again_without_another_report(fabric, tmp_path):
    settings = services.Settings(confirmed_after_s=0.05, period_s=3600)
    store = Store(f"sqlite:///{tmp_path / 'c.db'}", fabric.spec.name)

    async def name():
        service = Service(fabric, store, settings)
        running = asyncio.create_task(service.run())
        await asyncio.sleep(0)
        for src, dst in (("h0", "h4"), ("h4", "h0"), ("h0", "h8"), ("h4", "h8")):
            service.take(seen(fabric, src, dst, [uplink(fabric)]))
        async with asyncio.timeout(60):
            while not service.faults.open:
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await service.close()
        return list(service.faults.open)

    assert asyncio.run(name()) == [f"link {uplink(fabric)}"]


def test_what_changes_while_changes_are_stored_pushes_none_of_them_out(fabric, opened, monkeypatch):
    monkeypatch.setattr(records, "_MOST_PENDING", 4)
    links = sorted({path.links[1] for path in fabric.paths("h0", "h4")})[:4]

    async def flush_slowly():
        service = opened()
        store, begun, go_on = service._records.store, threading.Event(), threading.Event()
        keep = store.keep_changes

        def slowly(changes):
            begun.set()
            assert go_on.wait(60)
            keep(changes)

        store.keep_changes = slowly
        for link in links:
            service._changed(link, "before")
        flush = asyncio.create_task(service._records.flush())
        await asyncio.to_thread(begun.wait)
        for link in links:
            service._changed(link, "meanwhile")
        go_on.set()
        await flush
        await service._records.flush()
        found = {(each.link, each.detail) for link in links for each in store.changes(link, 9)}
        await service.close()
        assert found == {(link, detail) for link in links for detail in ("before", "meanwhile")}

    asyncio.run(flush_slowly())


def test_what_could_not_be_stored_is_stored_later(fabric, opened):
    async def fail_once():
        service = opened()
        store, keep = service._records.store, service._records.store.keep_changes

        def fails(_):
            raise OSError("no space left")

        store.keep_changes = fails
        service._changed(uplink(fabric), "early")
        with pytest.raises(OSError, match="no space"):
            await service._records.flush()
        store.keep_changes = keep
        await service._records.flush()
        assert [each.detail for each in store.changes(uplink(fabric), 9)] == ["early"]
        await service.close()

    asyncio.run(fail_once())


def test_a_database_that_is_none_is_refused_with_what_it_may_be():
    with pytest.raises(Error, match=r"database foo://x: it must be sqlite:///FILE or postgresql"):
        Store("foo://x", "fabric")
