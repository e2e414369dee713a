"""The API in twenty lines: two devices on this machine, eight planes each, one write between them."""

from threading import Thread

from openmrc.connect import connect, listen
from openmrc.verbs import Device

with Device.loopback().open() as one, Device.loopback().open() as two, listen(port=0) as listener:
    # The receiving end: memory that the peer may write, and room for one message with an immediate value.
    inbox, arrivals = bytearray(64), two.create_cq()
    pd = two.alloc_pd()
    theirs, region = pd.create_qp(arrivals), pd.register(inbox)
    server = Thread(target=listener.accept, args=[theirs], kwargs={"buffers": [region], "receives": 1})
    server.start()

    # The sending end, which could be another process on another host.
    sent = one.create_cq()
    mine = one.alloc_pd().create_qp(sent)
    peer = connect("127.0.0.1", listener.address[1], mine)
    server.join()
    mine.write(b"hello over eight planes", peer.buffers[0], imm_data=2026)

    print(sent.take()[0].status.name, arrivals.take()[0].imm_data, inbox.rstrip(b"\0").decode())
