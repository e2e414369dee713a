"""docs/security.md: every limit is that of the code."""

import pytest

from openmrc import connect
from openmrc.collectives import callers, coordinator, store
from openmrc.control import Limits, budget, channel, messages, token
from openmrc.operate import announced, client, events, exporter, model, server
from openmrc.perftest import server as measuring
from openmrc.transfer import descriptors, protocol, receiver, session
from tests.helpers.repository import words

TEXT = words("docs/security.md")
STRANGERS = Limits()
TRANSFERS = receiver.Limits()

SAID = (
    f"TCP {connect.DEFAULT_PORT} | `listen`",
    f"TCP {protocol.DEFAULT_PORT} | `serve`",
    f"TCP {server.DEFAULT_PORT} | `openmrc controller`",
    f"greeted in at most {messages.GREETING_LIMIT >> 10} KiB",
    f"to {exporter.MOST_CONNECTIONS} connections at a time",
    f"or after {callers.GREETING:.0f} s. {callers.STRANGERS} at a time, and 3 for each rank",
    f"{token.MIN_BYTES} to {token._MAX_BYTES} bytes, never sent",
    f"a nonce of {messages.NONCE_BYTES} bytes",
    f"{STRANGERS.strangers}, and at most a quarter of the descriptors; {STRANGERS.per_address} of one IPv4",
    f"{STRANGERS.greeting:.0f} s for greeting and proof, whatever drips; then {STRANGERS.first:.0f} s for",
    f"{messages.EXPANSION} bytes for each byte that a message announces beyond {channel._FREE >> 10} KiB",
    f"{budget.PER_ADDRESS >> 30} GiB for one address without a token, {budget.TOGETHER >> 30} GiB for all",
    f"the peer is ended after {channel.SEND_TIMEOUT:.0f} s",
    f"{session.ENTRY_MEMORY} bytes and its path for each file",
    f"{TRANSFERS.senders}, {TRANSFERS.per_address} of one address",
    f"for {descriptors.LEAST_FILES} to {descriptors.MOST_FILES} files",
    f"leaves {receiver._KEPT_DESCRIPTORS} for others",
    f"memory: {measuring.MEMORY >> 20} MiB without a token",
    f"{measuring.TRUSTED_MEMORY >> 30} GiB with one",
    f"{round(store._MAX_VALUE / (1 << 20))} MiB for a value",
    f"{coordinator._MAX_MESSAGE >> 10} KiB for a message; who does not join within",
    f"under any {model.MOST_JOBS} names",
    f"{model.MOST_BODY >> 20} MiB, not compressed; 16 KiB of headers; {model.MOST_PATHS:,} paths of a kind",
    f"{server._MOST_CONNECTIONS:,}; {events.MOST_LISTENERS} that follow events, each with"
    f" {events.MOST_UNREAD:,} unread ones",
    f"limits answers to {client._MOST_ANSWER >> 20} MiB",
    f"{announced.MOST_PROCESSES} connections, {announced.MOST_OF_A_USER} of a named user, answers of"
    f" {announced.MOST_ANSWER >> 20} MiB",
    f"not within {announced.PATIENCE_S:.0f} s ends the connection",
    f"by {announced.WAIT_S} s at most",
)


@pytest.mark.parametrize("said", SAID)
def test_a_limit_is_that_of_the_code(said):
    assert said in TEXT
