-- MRC for Wireshark and tshark: the extension headers behind the BTH (docs/spec/wire.md; crates/wire has the same
-- offsets).
-- `openmrc dissector --install` puts this file where Wireshark looks. It must leave every other packet of the port to
-- the dissector that had it before.

local mrc = Proto("mrc", "Multipath Reliable Connection")

local OPCODES = {
    [0xC6] = "WRITE_FIRST", [0xC7] = "WRITE_MIDDLE", [0xC8] = "WRITE_LAST", [0xC9] = "WRITE_LAST_IMM",
    [0xCA] = "WRITE_ONLY", [0xCB] = "WRITE_ONLY_IMM", [0xD1] = "ACK", [0xD8] = "ENDPOINT_REQUEST",
    [0xD9] = "ENDPOINT_RESPONSE", [0xDC] = "SACK", [0xDD] = "NACK", [0xDE] = "PROBE",
}
local REASONS = {
    [0x01] = "trimmed", [0x02] = "trimmed on the last hop", [0x06] = "no bitmap", [0x07] = "no packet buffer",
    [0x0A] = "no resource", [0x0B] = "PSN out of window", [0x19] = "unexpected event",
}
local MARKS = { [0] = "none", [1] = "skip once", [2] = "always skip" }
local OPERATIONS = { [0] = "port status update", [1] = "EV probe" }

local f = {
    opcode = ProtoField.uint8("mrc.opcode", "Opcode", base.HEX, OPCODES),
    m = ProtoField.bool("mrc.m", "MigReq (M)", 8, nil, 0x80),
    se = ProtoField.bool("mrc.se", "Solicited event", 8, nil, 0x40),
    pad = ProtoField.uint8("mrc.pad", "Pad count", base.DEC, nil, 0x30),
    tver = ProtoField.uint8("mrc.tver", "Transport version", base.DEC, nil, 0x0F),
    pkey = ProtoField.uint16("mrc.pkey", "Partition key", base.HEX),
    variant = ProtoField.uint8("mrc.variant", "Variant", base.HEX),
    dest_qp = ProtoField.uint24("mrc.dest_qp", "Destination queue pair", base.HEX),
    ack_req = ProtoField.bool("mrc.ack_req", "Acknowledge request (A)", 8, nil, 0x80),
    rtx = ProtoField.bool("mrc.rtx", "Retransmission (RTX)", 8, nil, 0x20),
    ts = ProtoField.bool("mrc.ts", "Timestamp follows (TS)", 8, nil, 0x10),
    psn = ProtoField.uint24("mrc.psn", "PSN", base.DEC),

    rqmsn = ProtoField.uint16("mrc.meth.rqmsn", "RQMSN", base.DEC),
    msn = ProtoField.uint16("mrc.meth.msn", "MSN", base.DEC),
    timestamp = ProtoField.uint16("mrc.timestamp", "Transmit timestamp", base.DEC),
    tsr = ProtoField.bool("mrc.tsr", "Timestamp resolution: own (not 128 ns)", 8, nil, 0x80),
    va = ProtoField.uint64("mrc.reth.va", "Virtual address", base.HEX),
    rkey = ProtoField.uint32("mrc.reth.rkey", "R_Key", base.HEX),
    dma_len = ProtoField.uint32("mrc.reth.dma_len", "DMA length of the message", base.DEC),
    imm = ProtoField.uint32("mrc.imm", "Immediate", base.HEX),
    syndrome = ProtoField.uint8("mrc.aeth.syndrome", "Syndrome", base.HEX),
    aeth_msn = ProtoField.uint24("mrc.aeth.msn", "MSN", base.DEC),

    mark = ProtoField.uint8("mrc.seth.m", "Mark of the path", base.DEC, MARKS, 0x60),
    probe_reply = ProtoField.bool("mrc.seth.pr", "Answers a probe", 8, nil, 0x02),
    ack_psn_offset = ProtoField.int16("mrc.seth.ack_psn_offset", "ack_psn_offset, or probe id", base.DEC),
    entropy = ProtoField.uint32("mrc.entropy", "Entropy value, reflected", base.HEX),
    spdcid = ProtoField.uint16("mrc.spdcid", "spdcid", base.HEX),
    dpdcid = ProtoField.uint16("mrc.dpdcid", "dpdcid", base.HEX),
    cack_psn = ProtoField.uint24("mrc.seth.cack_psn", "Cumulative PSN", base.DEC),
    cc_type = ProtoField.uint8("mrc.cc_type", "cc_type", base.DEC, nil, 0xF0),
    cc_flags = ProtoField.uint8("mrc.cc_flags", "cc_flags", base.HEX, nil, 0x0F),
    mpr = ProtoField.uint8("mrc.seth.mpr", "MPR, units of 128 PSNs", base.DEC),
    sack_offset = ProtoField.int16("mrc.seth.sack_offset", "sack_offset", base.DEC),
    bitmap = ProtoField.uint64("mrc.seth.bitmap", "SACK bitmap", base.HEX),
    ooo_count = ProtoField.uint16("mrc.cc.ooo_count", "Packets beyond the cumulative PSN", base.DEC, nil, 0x7FFF),
    restore = ProtoField.bool("mrc.cc.restore_cwnd", "Restore the window", 8, nil, 0x80),
    penalty = ProtoField.uint8("mrc.cc.rcv_cwnd_pen", "Receiver's window penalty", base.DEC, nil, 0x7F),
    rcvd = ProtoField.uint24("mrc.cc.rcvd_bytes", "Received, units of 256 bytes", base.DEC),
    reason = ProtoField.uint8("mrc.neth.reason", "Reason", base.HEX, REASONS),
    vendor = ProtoField.uint8("mrc.vendor_info", "Vendor information", base.HEX),
    nack_psn = ProtoField.uint24("mrc.neth.nack_psn", "Refused PSN", base.DEC),
    probe_id = ProtoField.uint16("mrc.peth.probe_id", "Probe id", base.DEC),
    request = ProtoField.uint8("mrc.erth.op", "Operation", base.DEC, OPERATIONS, 0x03),
    response = ProtoField.uint8("mrc.eeth.op", "Operation", base.DEC, OPERATIONS, 0x0C),
    ports = ProtoField.uint32("mrc.erth.port_status_mask", "Ports that are up", base.HEX),

    payload = ProtoField.bytes("mrc.payload", "Payload"),
    padding = ProtoField.bytes("mrc.padding", "Padding"),
    icrc = ProtoField.uint32("mrc.icrc", "iCRC", base.HEX),
}
mrc.fields = f

local BTH, ICRC = 12, 4

-- Adds fields of a header at their offsets; returns the header's tree.
local function add(tree, tvb, title, at, length, fields)
    local part = tree:add(mrc, tvb(at, length), title)
    for _, each in ipairs(fields) do
        part:add(each[1], tvb(at + each[2], each[3]))
    end
    return part
end

local function write(tree, tvb, opcode, has_timestamp)
    local at = BTH
    add(tree, tvb, "METH", at, 4, { { f.rqmsn, 0, 2 }, { f.msn, 2, 2 } })
    at = at + 4
    if has_timestamp then
        add(tree, tvb, "TSETH", at, 4, { { f.timestamp, 0, 2 }, { f.tsr, 2, 1 } })
        at = at + 4
    end
    add(tree, tvb, "RETH", at, 16, { { f.va, 0, 8 }, { f.rkey, 8, 4 }, { f.dma_len, 12, 4 } })
    at = at + 16
    if opcode == 0xC9 or opcode == 0xCB then
        add(tree, tvb, "ImmDt", at, 4, { { f.imm, 0, 4 } })
        at = at + 4
    end
    return at
end

local function sack(tree, tvb)
    add(tree, tvb, "SETH", BTH, 28, {
        { f.mark, 1, 1 }, { f.probe_reply, 1, 1 }, { f.ack_psn_offset, 2, 2 }, { f.entropy, 4, 4 },
        { f.spdcid, 8, 2 }, { f.dpdcid, 10, 2 }, { f.cack_psn, 13, 3 }, { f.cc_type, 16, 1 }, { f.cc_flags, 16, 1 },
        { f.mpr, 17, 1 }, { f.sack_offset, 18, 2 }, { f.bitmap, 20, 8 },
    })
    add(tree, tvb, "CC_STATE", BTH + 28, 8, {
        { f.timestamp, 0, 2 }, { f.ooo_count, 2, 2 }, { f.restore, 4, 1 }, { f.penalty, 4, 1 }, { f.rcvd, 5, 3 },
    })
    return BTH + 36
end

local function nack(tree, tvb)
    add(tree, tvb, "NETH", BTH, 20, {
        { f.reason, 2, 1 }, { f.vendor, 3, 1 }, { f.entropy, 4, 4 }, { f.spdcid, 8, 2 }, { f.dpdcid, 10, 2 },
        { f.nack_psn, 13, 3 }, { f.cc_type, 16, 1 }, { f.cc_flags, 16, 1 }, { f.timestamp, 18, 2 },
    })
    return BTH + 20
end

local function probe(tree, tvb)
    add(tree, tvb, "PETH", BTH, 16, {
        { f.vendor, 3, 1 }, { f.probe_id, 4, 2 }, { f.spdcid, 8, 2 }, { f.dpdcid, 10, 2 },
        { f.timestamp, 12, 2 }, { f.tsr, 14, 1 },
    })
    return BTH + 16
end

local function request(tree, tvb)
    add(tree, tvb, "ERTH", BTH, 16, {
        { f.request, 1, 1 }, { f.vendor, 3, 1 }, { f.ports, 4, 4 }, { f.timestamp, 12, 2 }, { f.tsr, 14, 1 },
    })
    return BTH + 16
end

local function response(tree, tvb)
    add(tree, tvb, "EETH", BTH, 36, { { f.response, 1, 1 }, { f.timestamp, 28, 2 } })
    return BTH + 36
end

local function ack(tree, tvb)
    add(tree, tvb, "AETH", BTH, 4, { { f.syndrome, 0, 1 }, { f.aeth_msn, 1, 3 } })
    return BTH + 4
end

local HEADERS = { [0xD1] = ack, [0xD8] = request, [0xD9] = response, [0xDC] = sack, [0xDD] = nack, [0xDE] = probe }

-- Most bytes of the headers of each opcode, so that a packet that was cut off is told as such.
local LENGTHS = { [0xD1] = 4, [0xD8] = 16, [0xD9] = 36, [0xDC] = 36, [0xDD] = 20, [0xDE] = 16 }

local function length_of(opcode, has_timestamp)
    local imm = (opcode == 0xC9 or opcode == 0xCB) and 4 or 0
    return LENGTHS[opcode] or 20 + (has_timestamp and 4 or 0) + imm
end

mrc.prefs.udp_ports = Pref.range("UDP ports", "4791,4971", "UDP destination ports of MRC", 65535)

local udp_ports = DissectorTable.get("udp.port")
local ROCE_PORT = 4791
-- Wireshark's own dissector of RoCEv2: it gets what is not MRC, on whichever of the ports.
local rocev2 = udp_ports:get_dissector(ROCE_PORT)

function mrc.dissector(tvb, pinfo, root)
    local opcode = tvb:len() > 0 and tvb(0, 1):uint() or 0
    if tvb:len() < BTH + ICRC or not OPCODES[opcode] then
        if rocev2 then
            return rocev2:call(tvb, pinfo, root)
        end
        return 0
    end
    pinfo.cols.protocol = "MRC"
    local psn, qp = tvb(9, 3):uint(), tvb(5, 3):uint()
    pinfo.cols.info = string.format("%s QP 0x%06x PSN %d", OPCODES[opcode], qp, psn)
    local tree = root:add(mrc, tvb(), string.format("Multipath Reliable Connection, %s", OPCODES[opcode]))
    add(tree, tvb, "BTH", 0, BTH, {
        { f.opcode, 0, 1 }, { f.m, 1, 1 }, { f.se, 1, 1 }, { f.pad, 1, 1 }, { f.tver, 1, 1 }, { f.pkey, 2, 2 },
        { f.variant, 4, 1 }, { f.dest_qp, 5, 3 }, { f.ack_req, 8, 1 }, { f.rtx, 8, 1 }, { f.ts, 8, 1 }, { f.psn, 9, 3 },
    })
    local has_timestamp = tvb(8, 1):bitfield(3, 1) == 1
    if tvb:len() < BTH + length_of(opcode, has_timestamp) + ICRC then
        tree:add_expert_info(PI_MALFORMED, PI_WARN, "the extension headers are cut off")
        return tvb:len()
    end
    local at
    if HEADERS[opcode] then
        at = HEADERS[opcode](tree, tvb)
    else
        at = write(tree, tvb, opcode, has_timestamp)
    end
    -- The capture may have fewer bytes than the packet had.
    local whole, kept = tvb:reported_len(), tvb:len()
    local rest = math.max(whole - at - ICRC, 0)
    local padding = math.min(tvb(1, 1):bitfield(2, 2), rest)
    local payload = rest - padding
    if payload > 0 then
        local here = math.min(payload, kept - at)
        local cut = here < payload and ", cut by the capture" or ""
        tree:add(f.payload, tvb(at, here)):append_text(string.format(" (%d bytes%s)", payload, cut))
    end
    if padding > 0 and kept >= at + payload + padding then
        tree:add(f.padding, tvb(at + payload, padding))
    end
    if kept == whole then
        tree:add(f.icrc, tvb(whole - ICRC, ICRC))
    end
    return kept
end

local registered = mrc.prefs.udp_ports
udp_ports:add(registered, mrc)

function mrc.prefs_changed()
    if registered == mrc.prefs.udp_ports then
        return
    end
    udp_ports:remove(registered, mrc)
    if rocev2 then
        udp_ports:set(ROCE_PORT, rocev2)
    end
    registered = mrc.prefs.udp_ports
    udp_ports:add(registered, mrc)
end
