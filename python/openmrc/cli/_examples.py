"""One or two lines for each command, which its help and its manual page show. Tests run or parse them."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": ("openmrc demo --size 100M --duration 5s",),
    "train-demo": ("openmrc train-demo --ranks 2 --steps 40",),
    "example": ("openmrc example", "openmrc example link-flap"),
    "write-bw": (
        "openmrc write-bw --loopback -D 2",
        "openmrc write-bw server --addresses 10.1.0.7,10.2.0.7",
    ),
    "write-lat": ("openmrc write-lat --loopback -n 1000",),
    "put": ("openmrc put checkpoint.bin receiver --token-file token",),
    "serve": ("openmrc serve /data --bind 10.0.0.1 --token-file token",),
    "devices": ("openmrc devices", "openmrc devices --follow"),
    "run": ("openmrc run --planes 4 -- ib_write_bw",),
    "config-c": ("openmrc config-c", "cc $(openmrc config-c --cflags) hello.c $(openmrc config-c --libs)"),
    "decode": (
        "openmrc decode capture.pcapng --count 10 --verbose",
        "sudo openmrc decode --follow eth0 --json",
    ),
    "dissector": ("tshark -X lua_script:$(openmrc dissector) -r capture.pcapng",),
    "plan": (
        "openmrc plan lab.yaml",
        "openmrc plan lab.yaml --report plan.html",
        "openmrc plan lab.yaml --cabling cables.csv",
    ),
    "path": (
        "openmrc path h0 h15 --fabric lab.yaml",
        "openmrc path h0 h15 --fabric lab.yaml --ev 0x10000000",
    ),
    "config": ("openmrc config lab.yaml --platform frr --out configs",),
    "verify": ("openmrc verify configs",),
    "locate": ("openmrc locate lab.yaml", "openmrc locate lab.yaml --follow"),
    "lab locate": ("sudo openmrc lab locate",),
    "controller": (
        "openmrc controller --simulate",
        "openmrc controller fabric.yaml --token-file operators --database history.db",
    ),
    "agent": (
        "openmrc agent https://controller:18517 --host h12 --token-file token",
        "openmrc agent https://controller:18517 --token-file token --otlp http://collector:4318",
        "openmrc agent --token-file token --socket /run/openmrc/agent.sock --user ann",
    ),
    "fabric status": ("openmrc fabric status",),
    "fabric faults": ("openmrc fabric faults --over",),
    "fabric jobs": ("openmrc fabric jobs", "openmrc fabric jobs llama"),
    "fabric incident": ("openmrc fabric incident 7 --out incident.json",),
    "replay": (
        "openmrc replay incident.json",
        "openmrc replay incident.json --out incident.yaml",
    ),
    "fabric events": ("openmrc fabric events --follow",),
    "fabric log": ("openmrc fabric log",),
    "fabric validate": ("openmrc fabric validate h0-h15,h20",),
    "fabric dashboards": ("openmrc fabric dashboards --out monitoring --agent-metrics h0:9100",),
    "validate": ("openmrc validate --hosts h0-h15 --markdown",),
    "fabric drain": ('openmrc fabric drain p0/t1-2 --why "new firmware" --wait',),
    "fabric undrain": ('openmrc fabric undrain p0/t1-2 --why "firmware is new"',),
    "fabric link show": ("openmrc fabric link show p0/t0-0:up1",),
    "fabric link deny": ('openmrc fabric link deny p0/t0-0:up1 --why "dirty fibre"',),
    "fabric link allow": ('openmrc fabric link allow p0/t0-0:up1 --why "fibre cleaned"',),
    "lab up": ("sudo openmrc lab up lab.yaml",),
    "lab down": ("sudo openmrc lab down",),
    "lab status": ("sudo openmrc lab status",),
    "lab graph": ("sudo openmrc lab graph --picture lab.svg",),
    "lab exec": ("sudo openmrc lab exec h0 -- ping -c 3 h15",),
    "lab shell": ("sudo openmrc lab shell h0",),
    "lab fail": ("sudo openmrc lab fail p0/t0-0:up1",),
    "lab degrade": ("sudo openmrc lab degrade h3:p0 --loss 1%",),
    "lab repair": ("sudo openmrc lab repair",),
    "lab flap": ("sudo openmrc lab flap p0/t0-0:up1 --down 500ms --up 2s --count 10",),
    "lab soft": ("sudo openmrc lab soft p0/t1-2 --rate 100M",),
    "lab demo": ("sudo openmrc lab demo --only mrc", "sudo openmrc lab demo --operate --rate 10M"),
    "simulate": ("openmrc simulate --hosts 64", "openmrc simulate planned-fabric.yaml --report report.html"),
    "compare": ("openmrc compare planned-fabric.yaml --transports mrc,rocev2:qps=8",),
    "sweep": ("openmrc sweep incast.yaml --out points.csv",),
    "job": (
        "openmrc job --gpus 16384 --days 54",
        "openmrc job llama3-405b.yaml --what-if --report job.html",
        "openmrc job --gpus 1024 --days 1 --flows",
        "openmrc job --fabric lab.yaml --what-if",
        "openmrc job --gpus 1024 --networks mrc --write-failures failures.csv",
        "openmrc job --gpus 1024 --networks mrc --failures failures.csv",
    ),
    "workload generate": (
        "openmrc workload generate --model llama3-8b --gpus 16 --tp 8 --pp 2 --microbatches 4 -o step.jsonl",
    ),
    "workload show": ("openmrc workload show step.jsonl",),
    "workload run": (
        "openmrc workload run step.jsonl",
        "openmrc workload run step.jsonl --engine flow",
        "openmrc workload run step.jsonl --timeline step.json",
    ),
    "workload compare": (
        "openmrc workload compare step.jsonl --engine flow --planes 1,8 --placements t0,random",
        "openmrc workload compare step.jsonl --transports mrc,rocev2:qps=8 --json",
    ),
    "workload check": ("openmrc workload check step.jsonl",),
    "workload convert": (
        "openmrc workload convert step.jsonl step.goal",
        "openmrc workload convert step.jsonl traces --to chakra",
    ),
    "reproduce": ("openmrc reproduce --only P4 --seeds 1",),
    "bench-collective": ("openmrc bench-collective all_reduce --ranks 2 --maxbytes 1M",),
    "tune": ("openmrc tune --ranks 2 --out tuning.json",),
}


AS_ROOT = 'From a virtual environment, write sudo "$(command -v openmrc)" instead of sudo openmrc.'


def remark(name: str) -> str | None:
    """What else there is to know of a command's examples."""
    return AS_ROOT if any("sudo " in line for line in EXAMPLES.get(name, ())) else None


def epilog(name: str) -> str:
    """What stands at the end of the command's help, a paragraph for each line."""
    lines = EXAMPLES.get(name, ())
    if not lines:
        return ""
    paragraphs = ["Example:" if len(lines) == 1 else "Examples:", *lines, remark(name)]
    return "\n\n".join(filter(None, paragraphs))
