"""What the auto engine did without packets."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from openmrc import _core


@dataclass(frozen=True)
class Skipped:
    """What arrived without packets in a run of the auto engine."""

    messages: int
    """Messages that arrived without packets, or with packets for a part of their bytes."""
    bytes: int
    """Their payload bytes that no packet carried."""
    packets: int
    """Data packets that would have carried them."""
    share: float
    """Of all data packets: 0.9 where nine of ten were skipped."""
    resumed: int
    """Of the messages, those that went back to packets on their way."""
    recorded: int
    """Messages whose times were recorded, to be taken for others."""
    kinds: int
    """Kinds of messages with recorded times."""
    packets_only: str | None
    """Why packets carried everything from the beginning, or from the first fault on."""

    @classmethod
    def of(cls, simulation: "_core.Simulation", data_packets: int) -> Self:
        """What a simulation has skipped so far, beside these data packets."""
        found = simulation.skips()
        all_packets = found["packets"] + data_packets
        return cls(**found, share=found["packets"] / all_packets if all_packets else 0.0)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        text = f"{self.packets:,} data packets ({self.share:.1%}) of {self.messages:,} messages"
        return text if self.packets_only is None else f"{text}; packets only: {self.packets_only}"
