"""Python and C say the same of profiles: one random sequence of operations is carried out through both."""

import errno
import random
import subprocess

from openmrc.controller import CcAlgorithm, Controller, Ev, EvField, EvMode, ProfileState
from openmrc.errors import Error
from openmrc.verbs import EvState, QpState
from openmrc.wire import EvFormat
from tests.helpers.ends import device, make_end
from tests.helpers.programs import program, with_device

STATES = tuple(ProfileState)
MODES = {1: EvMode.AUTO, 2: EvMode.EXPLICIT, 4: EvMode.GENERATED}
FORMATS = {1: EvFormat.STRUCTURED, 2: EvFormat.SRV6, 4: EvFormat.UDP}
EV_STATES = {1: EvState.GOOD, 2: EvState.ASSUMED_BAD, 4: EvState.DENIED}
ALGORITHMS = {0: CcAlgorithm.NONE, 1: CcAlgorithm.NSCC, 2: "cubic"}

# Everything else is EINVAL.
ERRNO = {
    "in_use": errno.EBUSY,
    "too_wide": errno.E2BIG,
    "unknown_ev": errno.ENOENT,
    "no_room": errno.ENOSPC,
    "unsupported": errno.EOPNOTSUPP,
}

SEEDS = range(12)
OPERATIONS = 250


def shown(ev, state):
    return "0:0:1" if ev is None else f"{ev.value}:{ev.port + 1}:{state}"


class Python:
    """Carries out operations on a device of this process. -1: not given."""

    def __init__(self, context):
        control = Controller(context)
        self.formats = [control.ev_format_profile() for _ in range(2)]
        self.evs = [control.ev_profile() for _ in range(3)]
        self.ccs = [control.cc_profile() for _ in range(2)]
        self.of_id = {each._key: each for each in (*self.formats, *self.evs, *self.ccs)}
        self.end = make_end(context)
        self.qps = [self._new_qp() for _ in range(3)]

    def _new_qp(self):
        return self.end.pd.create_qp(self.end.send_cq, self.end.recv_cq)

    def outcome(self, what, *numbers):
        """What the C program prints for the operation."""
        try:
            result = getattr(self, what)(*numbers)
        except Error as error:
            return str(ERRNO.get(error.rule, errno.EINVAL))
        return "0" if result is None else f"0 {result}"

    def format(self, key, state, mode, count, *widths):
        given = {} if mode < 0 else {"ev_format": FORMATS[mode]}
        if count >= 0:
            given["widths"] = widths
        self.of_id[key].modify(None if state < 0 else STATES[state], **given)

    def ev(self, key, state, mode, form, count, min_active, mask, fields, *rows):
        given = {"mode": None if mode < 0 else MODES[mode], "format_profile": self.of_id.get(form)}
        named = {"count": count, "min_active": min_active, "event_mask": mask}
        given |= {name: value for name, value in named.items() if value >= 0}
        if fields >= 0:
            names = ("width", "init_val", "min_val", "max_val", "mask")
            given["fields"] = tuple(
                EvField(**dict(zip(names, rows[5 * i : 5 * i + 5], strict=True))) for i in range(fields)
            )
        self.of_id[key].modify(None if state < 0 else STATES[state], **given)

    def show(self, key):
        profile = self.of_id[key]
        attr = profile.query()
        codes = {state: code for code, state in EV_STATES.items()}
        mode = next(code for code, each in MODES.items() if each is attr.mode)
        evs = [shown(ev, ev and codes[profile.query_ev_state(ev)]) for ev in profile.query_evs()]
        state = STATES.index(profile.state)
        head = f"{state} {mode} {attr.count} {attr.min_active} {int(attr.event_mask)}"
        return " ".join([head, *evs])

    def replace(self, key, value, port, new_value, new_port, state):
        current = None if value < 0 else Ev(value, port - 1)
        self.of_id[key].replace_ev(
            current, Ev(new_value, new_port - 1), state=EV_STATES[state] if state else EvState.GOOD
        )

    def deny(self, key, value, port, state):
        self.of_id[key].modify_ev_state(Ev(value, port - 1), EV_STATES[state])

    def cc(self, key, state, algorithm, base_rtt, gamma, jump, gate):
        given = {} if algorithm < 0 else {"algorithm": ALGORITHMS[algorithm]}
        if base_rtt >= 0:
            # Of a C structure, which is given as a whole, zeros are defaults.
            given |= {"base_rtt_us": base_rtt / 1000, "gamma": gamma / 10, "max_md_jump": jump / 10}
            given = {name: value for name, value in (given | {"qa_gate": gate}).items() if value != 0}
        self.of_id[key].modify(None if state < 0 else STATES[state], **given)

    def cc_state(self, key):
        return STATES.index(self.of_id[key].state)

    def name(self, place, ev, cc):
        named = {} if ev < 0 else {"ev_profile_id": self.of_id[ev].profile_id if ev else 0}
        if cc >= 0:
            named["cc_profile_id"] = self.of_id[cc].profile_id if cc else 0
        self.qps[place].modify(QpState.INIT, **named)

    def reset(self, place):
        self.qps[place].modify(QpState.RESET)

    def destroy(self, place):
        self.qps[place].close()
        self.qps[place] = self._new_qp()


def operations(python, chosen):
    """Random operations, most of which are possible in some state."""
    formats, evs, ccs = ([each._key for each in kind] for kind in (python.formats, python.evs, python.ccs))

    def sometimes(*values):
        return chosen.choice([-1, *values])

    def step():
        return chosen.choice([-1, 0, 1, 1, 2, 2])

    def value():
        return [chosen.choice([0, 50000, 50001, 50002, 50003, 60000]), chosen.choice([1, 2, 1, 2, 3])]

    widths = [[16], [8, 8], [16, 1], [4, 4], []]
    sixteen = [[16, 0, 20000, 20999, 0xFFFF]], [[16, 0x8000, 0, 0, 0xFF]], [[16, 0, 0, 0, 0xFFFF]]
    eight = [[8, 0, 0xC0, 0xDF, 0xFF], [8, 0, 0, 0, 0xFF]], [[8, 1, 5, 4, 0xFF]], [[8, 0x100, 0, 0, 0]]

    def complete(key, to):
        """What brings a profile to a state, if the one before is right."""
        mode = chosen.choice([1, 2, 4])
        if chosen.random() < 0.4:
            return ["ev", key, to, *[-1] * 6]
        return ["ev", key, to, mode, formats[0], chosen.choice([4, 5, 8]), 1, chosen.choice([0, 3]), -1]

    yield ["format", formats[0], 1, 4, 1, 16]
    yield ["format", formats[0], 2, -1, -1]
    for _ in range(OPERATIONS):
        what = chosen.choices(
            ["format", "ev", "replace", "deny", "show", "cc", "cc_state", "name", "reset", "destroy"],
            [8, 50, 25, 6, 25, 15, 5, 20, 3, 5],
        )[0]
        match what:
            case "format":
                given = chosen.choice([None, *widths[:2], *widths])
                bits = [-1] if given is None else [len(given), *given]
                yield [what, chosen.choice(formats), step(), sometimes(4, 4, 4, 1), *bits]
            case "ev" if chosen.random() < 0.5:
                yield complete(chosen.choice(evs), chosen.choice([1, 2]))
            case "ev":
                mode, form = sometimes(1, 2, 4), sometimes(*formats)
                count, least = sometimes(1, 4, 5, 8, 2000), sometimes(0, 1, 6)
                fields = chosen.choice([None, None, *sixteen, *eight])
                rows = (
                    [-1]
                    if fields is None
                    else [len(fields), *(number for field in fields for number in field)]
                )
                yield [
                    what,
                    chosen.choice(evs),
                    step(),
                    mode,
                    form,
                    count,
                    least,
                    sometimes(0, 1, 3, 4),
                    *rows,
                ]
            case "replace":
                current = chosen.choice([[-1, 0], [-1, 0], value()])
                yield [what, chosen.choice(evs), *current, *value(), chosen.choice([0, 0, 1, 2, 4])]
            case "deny":
                yield [what, chosen.choice(evs), *value(), chosen.choice([1, 2, 4, 4])]
            case "show":
                yield [what, chosen.choice(evs)]
            case "cc":
                config = [sometimes(0, 500_000), chosen.choice([0, 8]), chosen.choice([5, 5, 20])]
                yield [
                    what,
                    chosen.choice(ccs),
                    step(),
                    sometimes(0, 1, 1, 2),
                    *config,
                    chosen.choice([0, 3, 64]),
                ]
            case "cc_state":
                yield [what, chosen.choice(ccs)]
            case "name":
                yield [what, chosen.randrange(3), chosen.choice([0, *evs, *evs]), sometimes(0, *ccs)]
            case _:
                yield [what, chosen.randrange(3)]


def comparable(outcome):
    """Values of a device's own are other ones for each device; how many they are is not."""
    words = outcome.split()
    return [*words[:6], len(words)] if len(words) > 2 and words[2] == "1" else words


def carried_out(built, seed):
    """What the operations of a seed give in Python and in C."""
    with device(planes=2).open() as context:
        python = Python(context)
        todo = list(operations(python, random.Random(seed)))
        ours = [python.outcome(*operation) for operation in todo]
    node = 100 + seed
    result = subprocess.run(
        [built],
        input="".join(" ".join(map(str, operation)) + "\n" for operation in todo),
        env=with_device(f"mrc0=127.90.{node}.1,127.91.{node}.1"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return list(zip(todo, ours, result.stdout.splitlines(), strict=True))


def test_profiles_do_the_same_in_python_and_c(tmp_path):
    built = program(tmp_path, "profiles")
    seen = set()
    for seed in SEEDS:
        for place, (operation, mine, other) in enumerate(carried_out(built, seed)):
            assert comparable(mine) == comparable(other), (seed, place, operation, mine, other)
            seen.add(int(other.split()[0]))
    # The sequences get far enough to meet every rule but the number of profiles.
    refused = {errno.EINVAL, errno.EBUSY, errno.E2BIG, errno.ENOENT, errno.EOPNOTSUPP}
    assert seen == {0, *refused}
