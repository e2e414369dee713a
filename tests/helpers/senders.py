"""A sender of files that a test plays."""

from openmrc import handshake
from openmrc.control import dial
from openmrc.planes import Planes, path_mtu
from openmrc.transfer import protocol as p
from openmrc.transfer.ring import SendingRing


class Rogue:
    """A sender that sends what the test wants."""

    def __init__(self, port):
        self.channel = dial(p.PROTOCOL, "127.0.0.1", port, "")
        self.context = Planes(count=2).open("127.0.0.1", "127.0.0.1")
        addresses = self.context.addresses
        with handshake.calling(self.channel, self.context) as calling:
            offer = calling.offer
            self.ring = SendingRing(self.context, "server", offer)
            calling.accept(self.ring.end(path_mtu(addresses, offer.addresses, offer.path_mtu)))

    def announce(self, *entries):
        self.channel.send(p.Manifest(entries=list(entries), if_exists="replace"))
        return self.channel.expect(p.Plan, 10).verdicts

    def block(self, data, tag):
        self.ring.free()[: len(data)] = data
        self.ring.post(len(data), tag)

    def close(self):
        self.channel.close()
        self.context.close()
