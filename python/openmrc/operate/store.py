"""What the controller keeps: decisions, denied links, drains, faults and the history of links; and its lease.

SQLAlchemy Core over SQLite in a file, or PostgreSQL by URL. All calls wait for the database; the controller
makes them in a thread of its own.
"""

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from openmrc.closing import Closable
from openmrc.errors import Error, StateError
from openmrc.operate.model import Change, Drain, NamedFault, Outcome

SCHEMA = 1
"""Version of the tables below. A change of them is a new version and a step in :data:`_STEPS`."""
DAY_S = 86_400

_tables = sa.MetaData()
_meta = sa.Table("openmrc_schema", _tables, sa.Column("version", sa.Integer, primary_key=True))
_lease = sa.Table(
    "openmrc_lease",
    _tables,
    sa.Column("fabric", sa.String(128), primary_key=True),
    sa.Column("holder", sa.String(128), nullable=False),
    sa.Column("expires", sa.Float, nullable=False),
)
_denied = sa.Table(
    "openmrc_denied",
    _tables,
    sa.Column("fabric", sa.String(128), primary_key=True),
    sa.Column("link", sa.String(128), primary_key=True),
    sa.Column("who", sa.String(64), nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("since", sa.Float, nullable=False),
    sa.Column("automatic", sa.Boolean, nullable=False),
)
_drains = sa.Table(
    "openmrc_drains",
    _tables,
    sa.Column("fabric", sa.String(128), primary_key=True),
    sa.Column("what", sa.String(128), primary_key=True),
    sa.Column("who", sa.String(64), nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("since", sa.Float, nullable=False),
)
_decisions = sa.Table(
    "openmrc_decisions",
    _tables,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("fabric", sa.String(128), nullable=False),
    sa.Column("time", sa.Float, nullable=False, index=True),
    sa.Column("content", sa.Text, nullable=False),
)
_faults = sa.Table(
    "openmrc_faults",
    _tables,
    sa.Column("fabric", sa.String(128), primary_key=True),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("until", sa.Float, index=True),
    sa.Column("content", sa.Text, nullable=False),
)
_changes = sa.Table(
    "openmrc_changes",
    _tables,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("fabric", sa.String(128), nullable=False),
    sa.Column("link", sa.String(128), nullable=False),
    sa.Column("time", sa.Float, nullable=False),
    sa.Column("evidence", sa.String(16), nullable=False),
    sa.Column("decision", sa.String(16), nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Index("openmrc_changes_by_link", "fabric", "link", "time"),
)

_STEPS: dict[int, Sequence[str]] = {}
"""For each version from 2 on, the statements that make it of the one before."""


class Denied(NamedTuple):
    """A link that must not be used."""

    link: str
    who: str
    why: str
    since: float
    automatic: bool


class Retention(NamedTuple):
    """How long things are kept, days."""

    changes: float = 30
    faults: float = 90
    decisions: float = 400


class Store(Closable):
    """The database of one fabric."""

    def __init__(self, url: str, fabric: str, *, retention: Retention | None = None) -> None:
        """Opens it, and makes or renews its tables.

        Args:
            url: ``sqlite:///FILE`` or ``postgresql+psycopg://USER@HOST/NAME``.
            fabric: Name of the fabric; several may share a database.
            retention: How long things are kept.

        Raises:
            Error: if the database cannot be opened, or is of a newer version.
        """
        self.fabric = fabric
        self.retention = retention or Retention()
        try:
            options: dict[str, Any] = {"pool_pre_ping": True}
            if url.startswith("sqlite"):
                options["connect_args"] = {"timeout": 5.0}
            self._engine = sa.create_engine(url, **options)
            if self._engine.dialect.name == "sqlite":
                sa.event.listen(self._engine, "connect", _durable)
            self._migrate()
        except sa.exc.NoSuchModuleError:
            known = "sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE"
            raise Error(f"database {shown(url)}: it must be {known}") from None
        except (sa.exc.SQLAlchemyError, ImportError) as error:
            raise Error(f"database {shown(url)}: {reason(error)}") from None

    def close(self) -> None:
        """Closes its connections."""
        self._engine.dispose()

    def _migrate(self) -> None:
        with self._engine.begin() as connection:
            if not sa.inspect(connection).has_table(_meta.name):
                _tables.create_all(connection)
                connection.execute(_meta.insert().values(version=SCHEMA))
                return
            found = connection.execute(sa.select(_meta.c.version)).scalar_one()
            if found > SCHEMA:
                raise StateError(
                    f"the database has version {found} of the tables, this openmrc knows {SCHEMA}: update it"
                )
            for version in range(found + 1, SCHEMA + 1):
                for statement in _STEPS[version]:
                    connection.execute(sa.text(statement))
                connection.execute(_meta.update().values(version=version))

    # --- lease ----------------------------------------------------------------------------------------------

    def take_lease(self, holder: str, seconds: float) -> str | None:
        """Takes or renews the lease of the fabric; returns who has it if that is another.

        The clocks of controllers that share a database must agree to within ``seconds``.
        """
        now = time.time()
        mine = sa.and_(
            _lease.c.fabric == self.fabric, sa.or_(_lease.c.holder == holder, _lease.c.expires < now)
        )
        try:
            with self._engine.begin() as connection:
                taken = connection.execute(
                    _lease.update().where(mine).values(holder=holder, expires=now + seconds)
                )
                if taken.rowcount:
                    return None
                row = connection.execute(
                    sa.select(_lease.c.holder).where(_lease.c.fabric == self.fabric)
                ).scalar_one_or_none()
                if row is not None:
                    return str(row)
                connection.execute(
                    _lease.insert().values(fabric=self.fabric, holder=holder, expires=now + seconds)
                )
        except sa.exc.IntegrityError:
            return "another controller"  # It was faster.
        return None

    def give_lease(self, holder: str) -> None:
        """Gives the lease back, so that another controller need not wait."""
        with self._engine.begin() as connection:
            connection.execute(
                _lease.delete().where(_lease.c.fabric == self.fabric, _lease.c.holder == holder)
            )

    # --- decisions ------------------------------------------------------------------------------------------

    def decide(
        self,
        outcome: Outcome,
        *,
        deny: Iterable[Denied] = (),
        allow: Iterable[str] = (),
        drain: Drain | None = None,
        undrain: str | None = None,
    ) -> Outcome:
        """Keeps a decision and what it changes, all or nothing; returns it with its number."""
        with self._engine.begin() as connection:
            number = connection.execute(
                _decisions.insert()
                .values(fabric=self.fabric, time=outcome.time, content=outcome.model_dump_json())
                .returning(_decisions.c.id)
            ).scalar_one()
            links = [*allow]
            for each in deny:
                links.append(each.link)
            for link in links:
                connection.execute(
                    _denied.delete().where(_denied.c.fabric == self.fabric, _denied.c.link == link)
                )
            rows = [{"fabric": self.fabric, **each._asdict()} for each in deny]
            if rows:
                connection.execute(_denied.insert(), rows)
            gone = undrain or (drain.what if drain else None)
            if gone is not None:
                connection.execute(
                    _drains.delete().where(_drains.c.fabric == self.fabric, _drains.c.what == gone)
                )
            if drain is not None:
                connection.execute(
                    _drains.insert().values(
                        fabric=self.fabric, what=drain.what, who=drain.who, why=drain.why, since=drain.since
                    )
                )
        return outcome.model_copy(update={"id": number})

    def denied(self) -> list[Denied]:
        """The links that must not be used."""
        columns = [_denied.c[name] for name in Denied._fields]
        return [
            Denied(*row) for row in self._rows(sa.select(*columns).where(_denied.c.fabric == self.fabric))
        ]

    def drains(self) -> list[Drain]:
        """What is taken out."""
        columns = [_drains.c[name] for name in ("what", "who", "why", "since")]
        rows = self._rows(sa.select(*columns).where(_drains.c.fabric == self.fabric))
        return [Drain(what=w, who=o, why=y, since=s, state="draining") for w, o, y, s in rows]

    def decisions(self, most: int) -> list[Outcome]:
        """The last decisions, the newest first."""
        query = sa.select(_decisions.c.id, _decisions.c.content).where(_decisions.c.fabric == self.fabric)
        rows = self._rows(query.order_by(_decisions.c.id.desc()).limit(most))
        return [Outcome(**{**json.loads(content), "id": number}) for number, content in rows]

    # --- faults and changes ---------------------------------------------------------------------------------

    def keep_faults(self, faults: Iterable[NamedFault]) -> None:
        """Keeps faults, replacing those of the same number."""
        with self._engine.begin() as connection:
            for fault in faults:
                values = {"until": fault.until, "content": fault.model_dump_json()}
                mine = sa.and_(_faults.c.fabric == self.fabric, _faults.c.id == fault.id)
                done = connection.execute(_faults.update().where(mine).values(**values))
                if not done.rowcount:
                    connection.execute(_faults.insert().values(id=fault.id, fabric=self.fabric, **values))

    def faults(self, most: int) -> list[NamedFault]:
        """The last faults, the newest first."""
        query = sa.select(_faults.c.content).where(_faults.c.fabric == self.fabric)
        rows = self._rows(query.order_by(_faults.c.id.desc()).limit(most))
        return [NamedFault.model_validate_json(content) for (content,) in rows]

    def next_fault(self) -> int:
        """The number of the next fault."""
        query = sa.select(sa.func.max(_faults.c.id)).where(_faults.c.fabric == self.fabric)
        [(most,)] = self._rows(query)
        return (most or 0) + 1

    def keep_changes(self, changes: Iterable[Change]) -> None:
        """Adds to the history of links."""
        rows = [{"fabric": self.fabric, **change.model_dump()} for change in changes]
        if rows:
            with self._engine.begin() as connection:
                connection.execute(_changes.insert(), rows)

    def changes(self, link: str, most: int) -> list[Change]:
        """The last changes of a link, the newest first."""
        columns = [_changes.c[name] for name in ("time", "link", "evidence", "decision", "detail")]
        query = sa.select(*columns).where(_changes.c.fabric == self.fabric, _changes.c.link == link)
        rows = self._rows(query.order_by(_changes.c.time.desc(), _changes.c.id.desc()).limit(most))
        return [Change(time=t, link=n, evidence=e, decision=d, detail=x) for t, n, e, d, x in rows]

    def forget(self, now: float) -> int:
        """Removes what is older than its retention; returns how many rows."""
        kept = self.retention
        limits = [
            (_changes, _changes.c.time < now - kept.changes * DAY_S),
            (_faults, _faults.c.until < now - kept.faults * DAY_S),
            (_decisions, _decisions.c.time < now - kept.decisions * DAY_S),
        ]
        with self._engine.begin() as connection:
            return sum(
                connection.execute(table.delete().where(table.c.fabric == self.fabric, old)).rowcount
                for table, old in limits
            )

    def _rows(self, query: sa.Select[Any]) -> Sequence[Any]:
        with self._engine.connect() as connection:
            return connection.execute(query).all()


def _durable(connection: Any, _: object) -> None:
    """A write-ahead log: readers and the writer do not wait for each other; a commit is on the disk."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


def shown(url: str) -> str:
    """A URL without its password."""
    try:
        return sa.engine.make_url(url).render_as_string(hide_password=True)
    except sa.exc.ArgumentError:
        return "(no URL)"


def reason(error: BaseException) -> str:
    """The first line of what a database says; SQLAlchemy adds the statement and a link."""
    origin = getattr(error, "orig", None) or error
    return (str(origin).splitlines() or [type(error).__name__])[0][:300]
