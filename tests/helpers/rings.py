"""Queue pairs around a lab: each host writes to the next, under another T0."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from openmrc.connect import Options, connect, listen
from openmrc.controller import Controller, EvMode, ProfileState
from openmrc.lab import entered
from openmrc.localise import smallest_cover
from openmrc.verbs import EvState, WcStatus
from openmrc.wire import EvFormat
from tests.helpers.labs import RING

SIZE = 1 << 19


class Ring:
    """A queue pair from each host of the ring to the next."""

    def __init__(self, lab, stack):
        self.lab = lab
        self._stack = stack
        self._states = {}
        self.contexts = {}
        for host in RING:
            with entered(lab.namespace(host)):
                self.contexts[host] = stack.enter_context(lab.device(host, seed=RING.index(host)).open())
        self.ways = [self._connect(src, dst) for src, dst in zip(RING, RING[1:] + RING[:1], strict=True)]

    def _connect(self, src, dst):
        one, two = self.contexts[src], self.contexts[dst]
        inbox, outbox = bytearray(SIZE), bytearray(SIZE)
        two_pd, one_pd = two.alloc_pd(), one.alloc_pd()
        theirs = two_pd.create_qp(two.create_cq())
        done = one.create_cq()
        mine = one_pd.create_qp(done)
        options = Options(ev_profile_id=self._every_path(one))
        inbox_region, outbox_region = two_pd.register(inbox), one_pd.register(outbox)
        with listen("localhost", port=0, allow_addresses=["::/0"]) as listener, ThreadPoolExecutor() as pool:
            accepted = pool.submit(listener.accept, theirs, buffers=[inbox_region])
            # The contexts are in namespaces of their own: their addresses are not this process's.
            peer = self._stack.enter_context(
                connect("localhost", listener.address[1], mine, options=options, allow_addresses=["::/0"])
            )
            self._stack.enter_context(accepted.result())
        return SimpleNamespace(
            src=src,
            dst=dst,
            qp=mine,
            done=done,
            outbox=outbox,
            region=outbox_region,
            inbox=inbox,
            remote=peer.buffers[0],
            keep=(theirs, inbox_region),
        )

    def _every_path(self, context):
        """A profile with all paths in rotation and none in reserve: all paths but condemned ones are used."""
        control = Controller(context)
        format_profile, profile = control.ev_format_profile(), control.ev_profile()
        format_profile.modify(ProfileState.OFFLINE, ev_format=EvFormat.UDP, widths=[16])
        format_profile.modify(ProfileState.ONLINE)
        profile.modify(ProfileState.OFFLINE, mode=EvMode.AUTO, format_profile=format_profile, active=8)
        profile.modify(ProfileState.ONLINE)
        return profile.profile_id

    def write(self, rounds):
        """Every host writes ``times`` times to the next; checks that the data arrive."""
        for number in range(rounds):
            for way in self.ways:
                way.outbox[:] = (f"{way.src} {number} ".encode() * SIZE)[:SIZE]
                way.qp.write(way.region, way.remote)
            for way in self.ways:
                [completion] = way.done.take(timeout=30)
                assert completion.status is WcStatus.SUCCESS
                assert way.inbox == way.outbox

    def paths(self):
        """Paths that the senders have condemned, and paths that they use."""
        dead, alive = [], []
        for way in self.ways:
            context = self.contexts[way.src]
            while (event := context.ev_events.poll()) is not None:
                if event.qp_num == way.qp.qp_num:
                    self._states[way.src, event.port, event.ev] = event.state
            for row in context.path_stats():
                path = self.lab.path(way.src, way.dst, row["port"], row["ev"])
                given_up = self._states.get((way.src, row["port"], row["ev"])) is EvState.ASSUMED_BAD
                (dead if given_up else alive).append(path)
        return dead, alive

    def named(self, enough):
        """The links that the events name, once that is ``enough``, and the dead paths.

        On a busy machine a host without a processor condemns working paths until its probes are answered. So
        the result may need some rounds to become stable.
        """
        for _ in range(50):
            self.write(2)
            dead, alive = self.paths()
            links = smallest_cover(dead, alive)
            if enough(links):
                break
        return links, dead
