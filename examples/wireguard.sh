#!/usr/bin/env bash
# Two hosts in network namespaces, two planes, a WireGuard tunnel on each plane: what docs/security.md recommends.
#
#     sudo examples/wireguard.sh up      # namespaces wg-a and wg-b; planes 10.61.P.x, tunnels 10.62.P.x
#     sudo ip netns exec wg-b openmrc write-bw -A 10.62.0.2,10.62.1.2
#     sudo ip netns exec wg-a openmrc write-bw -A 10.62.0.1,10.62.1.1 10.62.0.2
#     sudo examples/wireguard.sh down
#
# Needs iproute2, wireguard-tools, and WireGuard in the kernel or wireguard-go.
set -euo pipefail
umask 077

PLANES=(0 1)
# The inner IP packet, WireGuard's 60 bytes (80 over IPv6) and the data must fit the plane's MTU.
PLANE_MTU=9000 TUNNEL_MTU=8920

up() {
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    for host in a b; do
        ip netns add "wg-$host"
        ip -n "wg-$host" link set lo up
        wg genkey > "$work/$host"
        wg pubkey < "$work/$host" > "$work/$host.pub"
    done
    for plane in "${PLANES[@]}"; do
        ip -n wg-a link add "n$plane" mtu $PLANE_MTU type veth peer name "n$plane" mtu $PLANE_MTU netns wg-b
        tunnel a 1 b 2 "$plane"
        tunnel b 2 a 1 "$plane"
    done
}

# One end of a tunnel: this host and its number, the peer and its number, the plane.
tunnel() {
    local host=$1 number=$2 peer=$3 other=$4 plane=$5
    ip -n "wg-$host" address add "10.61.$plane.$number/24" dev "n$plane"
    ip -n "wg-$host" link set "n$plane" up
    if ! ip -n "wg-$host" link add "wg$plane" type wireguard 2>/dev/null; then
        # A name of its own on each host: wireguard-go has one directory of control sockets.
        ip netns exec "wg-$host" env WG_PROCESS_FOREGROUND=1 wireguard-go "wg$plane$host" >/dev/null 2>&1 &
        for _ in {1..50}; do ip -n "wg-$host" link show "wg$plane$host" >/dev/null 2>&1 && break; sleep 0.1; done
        ip -n "wg-$host" link show "wg$plane$host" >/dev/null
        device=wg$plane$host
    else
        device=wg$plane
    fi
    ip netns exec "wg-$host" wg set "$device" listen-port $((51820 + plane)) private-key "$work/$host" \
        peer "$(cat "$work/$peer.pub")" allowed-ips "10.62.$plane.$other/32" endpoint "10.61.$plane.$other:$((51820 + plane))"
    ip -n "wg-$host" address add "10.62.$plane.$number/24" dev "$device"
    ip -n "wg-$host" link set "$device" mtu $TUNNEL_MTU up
}

down() {
    for host in a b; do
        # The tunnels' processes end with their interfaces.
        for plane in "${PLANES[@]}"; do
            ip -n "wg-$host" link del "wg$plane$host" 2>/dev/null || ip -n "wg-$host" link del "wg$plane" 2>/dev/null || true
        done
        ip netns del "wg-$host" 2>/dev/null || true
    done
}

case ${1-} in
    up) up ;;
    down) down ;;
    *) echo "usage: $0 up|down" >&2; exit 2 ;;
esac
