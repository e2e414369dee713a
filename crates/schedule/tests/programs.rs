//! The algorithms in a world of their own: every rank's program is executed on vectors, messages are cut and interleaved
//! at random, and bytes are read as late as a NIC may read them. The result is compared with the definition of the operation.

use std::collections::{HashSet, VecDeque};

use openmrc_schedule::program::{After, Finish, Memory, Program, Span};
use openmrc_schedule::{Algorithm, Shape};
use proptest::prelude::*;

/// Elements are bytes here, and reduction is wrapping addition: sensitive to every byte that is lost or counted twice.
struct Host {
    program: Program,
    input: Vec<u8>,
    output: Vec<u8>,
    scratch: Vec<u8>,
    /// Input and output are one memory.
    in_place: bool,
    sent: Vec<usize>,
    received: Vec<usize>,
    /// By peer: sends and receives not done.
    sends: Vec<VecDeque<usize>>,
    recvs: Vec<VecDeque<usize>>,
}

impl Host {
    fn bytes(&mut self, memory: Memory) -> &mut Vec<u8> {
        match memory {
            Memory::Input if !self.in_place => &mut self.input,
            Memory::Scratch => &mut self.scratch,
            _ => &mut self.output,
        }
    }

    fn read(&mut self, span: Span) -> Vec<u8> {
        self.bytes(span.memory)[span.offset..span.offset + span.len].to_vec()
    }

    fn write(&mut self, span: Span, bytes: &[u8]) {
        self.bytes(span.memory)[span.offset..span.offset + span.len].copy_from_slice(bytes);
    }

    fn ready(&self, after: After, len: usize) -> usize {
        match after {
            After::Bytes(recv) => self.received[recv],
            After::All(recv) if self.received[recv] == self.program.recvs[recv].to.len => len,
            After::All(_) => 0,
        }
    }
}

fn add(a: &[u8], b: &[u8]) -> Vec<u8> {
    a.iter().zip(b).map(|(x, y)| x.wrapping_add(*y)).collect()
}

/// Executes all programs with elements of one byte; the outputs.
fn execute(
    shapes: &[Shape],
    algorithm: Algorithm,
    inputs: &[Vec<u8>],
    in_place: bool,
    seed: u64,
) -> Vec<Vec<u8>> {
    execute_sized(shapes, algorithm, 1, inputs, in_place, seed)
}

/// Executes all programs with elements of `size` bytes; the outputs.
fn execute_sized(
    shapes: &[Shape],
    algorithm: Algorithm,
    size: usize,
    inputs: &[Vec<u8>],
    in_place: bool,
    seed: u64,
) -> Vec<Vec<u8>> {
    let ranks = shapes.len();
    let mut hosts: Vec<Host> = (0..ranks)
        .map(|rank| {
            let program = shapes[rank].program(algorithm, rank, ranks, size);
            if shapes[rank] != Shape::Barrier {
                has_whole_elements(&program, size);
            }
            let mut output = vec![0xee; shapes[rank].sizes(rank, ranks).1 * size];
            if in_place {
                output.resize(output.len().max(inputs[rank].len()), 0xee);
                output[..inputs[rank].len()].copy_from_slice(&inputs[rank]);
            }
            let mut sends = vec![VecDeque::new(); ranks];
            let mut recvs = vec![VecDeque::new(); ranks];
            program.sends.iter().enumerate().for_each(|(i, s)| sends[s.to].push_back(i));
            program.recvs.iter().enumerate().for_each(|(i, r)| recvs[r.from].push_back(i));
            Host {
                sent: vec![0; program.sends.len()],
                received: vec![0; program.recvs.len()],
                scratch: vec![0xdd; program.scratch],
                input: inputs[rank].clone(),
                output,
                in_place,
                sends,
                recvs,
                program,
            }
        })
        .collect();
    for host in &mut hosts {
        for (from, to) in host.program.copies.clone() {
            let bytes = host.read(from);
            host.write(to, &bytes);
        }
    }
    // On their way, by sender and receiver: where in the sender's memory the bytes lie. They are read on arrival.
    let mut wire: Vec<Vec<VecDeque<(Span, bool)>>> = vec![vec![VecDeque::new(); ranks]; ranks];
    let mut state = seed | 1;
    let mut draw = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n.max(1)
    };
    let mut stuck = 0;
    loop {
        let left = hosts.iter().any(|h| h.sends.iter().chain(&h.recvs).any(|list| !list.is_empty()));
        if !left {
            break;
        }
        stuck += 1;
        assert!(stuck < 200_000, "the programs of {algorithm:?} block each other: {:?}", shapes[0]);
        let (a, b) = (draw(ranks), draw(ranks));
        if draw(2) == 0 {
            let host = &mut hosts[a];
            let Some(&index) = host.sends[b].front() else { continue };
            let send = host.program.sends[index];
            let len = send.from.len;
            let open = send.after.map_or(len, |after| host.ready(after, len)) - host.sent[index];
            if open == 0 {
                continue;
            }
            let len = 1 + draw(open);
            let span = Span { offset: send.from.offset + host.sent[index], len, ..send.from };
            wire[a][b].push_back((span, send.reduced));
            host.sent[index] += len;
            if host.sent[index] == send.from.len {
                host.sends[b].pop_front();
            }
        } else {
            let Some(&(span, reduced)) = wire[a][b].front() else { continue };
            let index = *hosts[b].recvs[a].front().expect("a message that nobody expects");
            let recv = hosts[b].program.recvs[index];
            let done = hosts[b].received[index];
            assert_eq!(recv.with.is_some(), reduced, "the sender must know whether a message is reduced");
            assert!(done + span.len <= recv.to.len, "a message is longer than its receive");
            if recv.after.is_some_and(|after| hosts[b].ready(after, recv.to.len) < done + span.len) {
                continue;
            }
            wire[a][b].pop_front();
            let mut bytes = hosts[a].read(span);
            let host = &mut hosts[b];
            if let Some(with) = recv.with {
                bytes = add(&bytes, &host.read(Span { offset: with.offset + done, len: span.len, ..with }));
            }
            host.write(Span { offset: recv.to.offset + done, len: span.len, ..recv.to }, &bytes);
            host.received[index] += span.len;
            if host.received[index] == recv.to.len {
                host.recvs[a].pop_front();
            }
        }
        stuck = 0;
    }
    assert!(wire.iter().flatten().all(VecDeque::is_empty), "messages are left over");
    for host in &mut hosts {
        if let Some(Finish::Reduce { parts, to }) = host.program.finish.clone() {
            let first = host.read(parts[0]);
            let sum = parts[1..].iter().fold(first, |sum, part| add(&sum, &host.read(*part)));
            host.write(to, &sum);
        }
    }
    hosts.into_iter().map(|host| host.output).collect()
}

/// Nothing in a program is empty or cuts an element.
fn has_whole_elements(program: &Program, size: usize) {
    let copied = program.copies.iter().flat_map(|&(from, to)| [from, to]);
    let received = program.recvs.iter().flat_map(|recv| [Some(recv.to), recv.with]).flatten();
    let finished = program.finish.iter().flat_map(|Finish::Reduce { parts, to }| [parts[0], *to]);
    for span in copied.chain(received).chain(program.sends.iter().map(|send| send.from)).chain(finished) {
        assert!(span.len > 0 && span.len % size == 0 && span.offset % size == 0, "{span:?} of {program:?}");
    }
}

fn data(rank: usize, len: usize, seed: u64) -> Vec<u8> {
    (0..len).map(|i| (i as u64 * 31 + rank as u64 * 101 + seed * 7 + (i as u64 >> 3)) as u8).collect()
}

fn sum(parts: &[Vec<u8>]) -> Vec<u8> {
    parts[1..].iter().fold(parts[0].clone(), |sum, part| add(&sum, part))
}

fn algorithms(shape: &Shape, ranks: usize) -> Vec<Algorithm> {
    Algorithm::ALL.into_iter().filter(|&each| shape.allows(each, ranks)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn all_reduce_is_the_sum_everywhere(ranks in 2usize..18, count in 0usize..200, seed: u64, in_place: bool) {
        let shape = Shape::AllReduce { count };
        let inputs: Vec<_> = (0..ranks).map(|r| data(r, count, seed % 97)).collect();
        for algorithm in algorithms(&shape, ranks) {
            let outputs = execute(&vec![shape.clone(); ranks], algorithm, &inputs, in_place, seed);
            outputs.iter().for_each(|output| assert_eq!(output, &sum(&inputs), "{algorithm:?}"));
        }
    }

    #[test]
    fn reduce_scatter_gives_each_its_part(counts in prop::collection::vec(0usize..40, 2..12), seed: u64) {
        let ranks = counts.len();
        let total = counts.iter().sum();
        let inputs: Vec<_> = (0..ranks).map(|r| data(r, total, seed % 97)).collect();
        let whole = sum(&inputs);
        let shape = Shape::ReduceScatter { counts: counts.clone() };
        for algorithm in algorithms(&shape, ranks) {
            let outputs = execute(&vec![shape.clone(); ranks], algorithm, &inputs, false, seed);
            let mut at = 0;
            for (output, count) in outputs.iter().zip(&counts) {
                assert_eq!(output, &whole[at..at + count], "{algorithm:?}");
                at += count;
            }
        }
    }

    #[test]
    fn all_gather_gives_everyone_everything(counts in prop::collection::vec(0usize..40, 2..12), seed: u64) {
        let ranks = counts.len();
        let inputs: Vec<_> = (0..ranks).map(|r| data(r, counts[r], seed % 97)).collect();
        let shape = Shape::AllGather { counts };
        for algorithm in algorithms(&shape, ranks) {
            let outputs = execute(&vec![shape.clone(); ranks], algorithm, &inputs, false, seed);
            outputs.iter().for_each(|output| assert_eq!(output, &inputs.concat(), "{algorithm:?}"));
        }
    }

    #[test]
    fn all_to_all_transposes(ranks in 2usize..9, seed: u64) {
        let count = |from: usize, to: usize| (from * 7 + to * 13 + seed as usize % 50) % 23;
        let shape = |rank| Shape::AllToAll {
            send: (0..ranks).map(|to| count(rank, to)).collect(),
            recv: (0..ranks).map(|from| count(from, rank)).collect(),
        };
        let shapes: Vec<_> = (0..ranks).map(shape).collect();
        let inputs: Vec<_> = (0..ranks).map(|r| data(r, shapes[r].sizes(r, ranks).0, seed % 97)).collect();
        let outputs = execute(&shapes, Algorithm::Direct, &inputs, false, seed);
        for (rank, output) in outputs.iter().enumerate() {
            let expected: Vec<u8> = (0..ranks)
                .flat_map(|from| {
                    let before: usize = (0..rank).map(|to| count(from, to)).sum();
                    inputs[from][before..before + count(from, rank)].to_vec()
                })
                .collect();
            assert_eq!(output, &expected);
        }
    }

    #[test]
    fn operations_with_a_root(ranks in 2usize..18, root in 0usize..18, count in 0usize..100, seed: u64) {
        let root = root % ranks;
        let inputs: Vec<_> = (0..ranks).map(|r| data(r, count, seed % 97)).collect();
        let broadcast = Shape::Broadcast { root, count };
        for algorithm in algorithms(&broadcast, ranks) {
            let outputs = execute(&vec![broadcast.clone(); ranks], algorithm, &inputs, false, seed);
            outputs.iter().for_each(|output| assert_eq!(output, &inputs[root], "{algorithm:?}"));
        }
        let reduce = Shape::Reduce { root, count };
        for algorithm in algorithms(&reduce, ranks) {
            let outputs = execute(&vec![reduce.clone(); ranks], algorithm, &inputs, false, seed);
            assert_eq!(outputs[root], sum(&inputs), "{algorithm:?}");
        }
        let gather = Shape::Gather { root, count };
        let outputs = execute(&vec![gather; ranks], Algorithm::Direct, &inputs, false, seed);
        assert_eq!(outputs[root], inputs.concat());
        let scatter = Shape::Scatter { root, count };
        let mut inputs = vec![Vec::new(); ranks];
        inputs[root] = data(root, ranks * count, seed % 97);
        let outputs = execute(&vec![scatter; ranks], Algorithm::Direct, &inputs, false, seed);
        let parts: Vec<u8> = outputs.concat();
        assert_eq!(&parts, &inputs[root]);
    }

    #[test]
    fn a_barrier_ends_for_nobody_before_all_have_begun(ranks in 2usize..40, seed: u64) {
        // Whoever has ended has heard, directly or through others, from every rank.
        execute(&vec![Shape::Barrier; ranks], Algorithm::Tree, &vec![Vec::new(); ranks], false, seed);
        all_hear_from_all(ranks);
    }
}

/// In a barrier.
fn all_hear_from_all(ranks: usize) {
    let mut heard: Vec<Vec<bool>> = (0..ranks).map(|r| (0..ranks).map(|s| s == r).collect()).collect();
    let programs: Vec<_> = (0..ranks).map(|r| Shape::Barrier.program(Algorithm::Tree, r, ranks, 1)).collect();
    for round in 0..programs[0].recvs.len() {
        let before = heard.clone();
        for (rank, program) in programs.iter().enumerate() {
            let from = program.recvs[round].from;
            (0..ranks).for_each(|s| heard[rank][s] |= before[from][s]);
        }
    }
    assert!(heard.iter().flatten().all(|&is| is));
}

/// With few ranks and elements of three bytes, what the tests above say of many.
#[test]
fn every_algorithm_gives_what_its_operation_defines() {
    let size = 3;
    for ranks in 1..=8 {
        for (count, in_place) in [(0, false), (1, true), (9, false)] {
            let inputs: Vec<_> = (0..ranks).map(|r| data(r, count * size, 5)).collect();
            let root = count % ranks;
            let counts: Vec<_> = (0..ranks).map(|rank| (rank + count) % 3).collect();
            let total: usize = counts.iter().sum();
            let begin = |rank: usize| counts[..rank].iter().sum::<usize>() * size;
            let uneven: Vec<_> = (0..ranks).map(|r| data(r, counts[r] * size, 5)).collect();
            let whole: Vec<_> = (0..ranks).map(|r| data(r, total * size, 5)).collect();
            let only = |rank: usize, input: Vec<u8>| {
                (0..ranks).map(|r| if r == rank { input.clone() } else { Vec::new() }).collect::<Vec<_>>()
            };
            let parts = data(0, ranks * count * size, 5);
            let operations = [
                (Shape::AllReduce { count }, inputs.clone(), vec![sum(&inputs); ranks]),
                (
                    Shape::ReduceScatter { counts: counts.clone() },
                    whole.clone(),
                    (0..ranks).map(|r| sum(&whole)[begin(r)..begin(r + 1)].to_vec()).collect(),
                ),
                (Shape::AllGather { counts: counts.clone() }, uneven.clone(), vec![uneven.concat(); ranks]),
                (
                    Shape::Broadcast { root, count },
                    only(root, inputs[root].clone()),
                    vec![inputs[root].clone(); ranks],
                ),
                (Shape::Reduce { root, count }, inputs.clone(), only(root, sum(&inputs))),
                (Shape::Gather { root, count }, inputs.clone(), only(root, inputs.concat())),
                (
                    Shape::Scatter { root, count },
                    only(root, parts.clone()),
                    (0..ranks).map(|r| parts[r * count * size..(r + 1) * count * size].to_vec()).collect(),
                ),
                (Shape::Barrier, vec![Vec::new(); ranks], vec![Vec::new(); ranks]),
            ];
            for (shape, inputs, expected) in operations {
                for algorithm in algorithms(&shape, ranks) {
                    let in_place = in_place && matches!(shape, Shape::AllReduce { .. });
                    let outputs =
                        execute_sized(&vec![shape.clone(); ranks], algorithm, size, &inputs, in_place, 7);
                    assert_eq!(outputs, expected, "{shape:?} of {ranks} by {algorithm:?}");
                }
            }
        }
        all_hear_from_all(ranks);
    }
}

#[test]
fn each_algorithm_sends_its_messages_to_its_peers() {
    let (ranks, count) = (8, 64);
    let counts = vec![count / ranks; ranks];
    let (all_reduce, root) = (Shape::AllReduce { count }, 0);
    let (scatter, gather) = (Shape::ReduceScatter { counts: counts.clone() }, Shape::AllGather { counts });
    let (broadcast, reduce) = (Shape::Broadcast { root, count }, Shape::Reduce { root, count });
    // By rank 0 or 7: messages sent, and receivers.
    for (shape, algorithm, of_first, of_last) in [
        (&all_reduce, Algorithm::Ring, (14, 1), (14, 1)),
        (&all_reduce, Algorithm::Halving, (6, 3), (6, 3)),
        (&all_reduce, Algorithm::Doubling, (3, 3), (3, 3)),
        (&all_reduce, Algorithm::Direct, (7, 7), (7, 7)),
        (&all_reduce, Algorithm::Tree, (3, 3), (1, 1)),
        (&scatter, Algorithm::Ring, (7, 1), (7, 1)),
        (&scatter, Algorithm::Direct, (7, 7), (7, 7)),
        (&gather, Algorithm::Ring, (7, 1), (7, 1)),
        (&gather, Algorithm::Direct, (7, 7), (7, 7)),
        (&broadcast, Algorithm::Tree, (3, 3), (0, 0)),
        (&broadcast, Algorithm::Chain, (1, 1), (0, 0)),
        (&reduce, Algorithm::Tree, (0, 0), (1, 1)),
        (&reduce, Algorithm::Chain, (0, 0), (1, 1)),
    ] {
        let sent = |rank| {
            let to: Vec<_> =
                shape.program(algorithm, rank, ranks, 1).sends.iter().map(|send| send.to).collect();
            (to.len(), to.iter().collect::<HashSet<_>>().len())
        };
        assert_eq!((sent(0), sent(7)), (of_first, of_last), "{shape:?} by {algorithm:?}");
    }
    let heard = |algorithm| reduce.program(algorithm, 0, ranks, 1).recvs.len();
    assert_eq!((heard(Algorithm::Tree), heard(Algorithm::Chain)), (3, 1));
}

#[test]
fn by_halving_rank_r_completes_part_r() {
    for rank in 0..8 {
        let program = Shape::AllReduce { count: 64 }.program(Algorithm::Halving, rank, 8, 2);
        let sent: Vec<_> = program.sends.iter().map(|send| send.from.len).collect();
        assert_eq!(sent, [64, 32, 16, 16, 32, 64]);
        let completed: Vec<_> = program.recvs.iter().filter(|recv| recv.last).map(|recv| recv.to).collect();
        assert_eq!(completed, [Span::output(16 * rank, 16)]);
    }
}

/// Where an average is divided: there it must be complete.
#[test]
fn every_element_of_a_reduction_is_completed_once() {
    for ranks in 2..=9 {
        let (count, size) = (20, 2);
        let counts = vec![count; ranks];
        for shape in
            [Shape::AllReduce { count }, Shape::ReduceScatter { counts }, Shape::Reduce { root: 1, count }]
        {
            for algorithm in algorithms(&shape, ranks) {
                let completed = |rank| {
                    let program = shape.program(algorithm, rank, ranks, size);
                    let last: Vec<_> = program.recvs.into_iter().filter(|recv| recv.last).collect();
                    assert!(last.iter().all(|recv| recv.with.is_some() && recv.to.memory == Memory::Output));
                    last.iter().map(|recv| recv.to.len / size).sum::<usize>()
                };
                let expected = match algorithm {
                    // At the end, by every rank itself.
                    Algorithm::Direct => 0,
                    Algorithm::Doubling => ranks * count,
                    _ => shape.common_count(),
                };
                assert_eq!((0..ranks).map(completed).sum::<usize>(), expected, "{shape:?} {algorithm:?}");
            }
        }
    }
}

#[test]
fn operations_have_names_codes_roots_and_counts() {
    let (root, count, counts) = (2, 5, vec![1, 2, 3]);
    for (code, (shape, name, root, reduces, common, sizes, algorithms_of_4, algorithms_of_3)) in [
        (
            Shape::AllReduce { count },
            "all_reduce",
            None,
            true,
            5,
            [(5, 5), (5, 5)],
            "ring halving direct tree doubling",
            "ring direct tree",
        ),
        (
            Shape::ReduceScatter { counts: counts.clone() },
            "reduce_scatter",
            None,
            true,
            6,
            [(6, 2), (6, 3)],
            "ring direct",
            "ring direct",
        ),
        (
            Shape::AllGather { counts },
            "all_gather",
            None,
            false,
            6,
            [(2, 6), (3, 6)],
            "ring direct",
            "ring direct",
        ),
        (
            Shape::AllToAll { send: vec![1, 2, 3], recv: vec![4, 5, 6] },
            "all_to_all",
            None,
            false,
            0,
            [(6, 15), (6, 15)],
            "direct",
            "direct",
        ),
        (
            Shape::Broadcast { root, count },
            "broadcast",
            Some(2),
            false,
            5,
            [(0, 5), (5, 5)],
            "tree chain",
            "tree chain",
        ),
        (
            Shape::Reduce { root, count },
            "reduce",
            Some(2),
            true,
            5,
            [(5, 0), (5, 5)],
            "tree chain",
            "tree chain",
        ),
        (Shape::Gather { root, count }, "gather", Some(2), false, 5, [(5, 0), (5, 15)], "direct", "direct"),
        (Shape::Scatter { root, count }, "scatter", Some(2), false, 5, [(0, 5), (15, 5)], "direct", "direct"),
        (Shape::Barrier, "barrier", None, false, 0, [(0, 0), (0, 0)], "tree", "tree"),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!((shape.code(), shape.name(), Shape::name_of(code as u8)), (code as u8, name, name));
        assert_eq!((shape.root(), shape.reduces(), shape.common_count()), (root, reduces, common), "{name}");
        assert_eq!([1, 2].map(|rank| shape.sizes(rank, 3)), sizes, "{name}");
        let names =
            |ranks| algorithms(&shape, ranks).iter().map(|each| each.name()).collect::<Vec<_>>().join(" ");
        assert_eq!((names(4), names(3)), (algorithms_of_4.into(), algorithms_of_3.into()), "{name}");
    }
    assert_eq!(Shape::name_of(9), "unknown operation");
    for algorithm in Algorithm::ALL {
        assert_eq!(Algorithm::from_name(algorithm.name()), Some(algorithm));
    }
    assert_eq!(Algorithm::from_name("rings"), None);
}

#[test]
fn what_every_rank_reduces_by_itself_is_in_the_order_of_the_ranks() {
    for ranks in 2..6 {
        for rank in 0..ranks {
            let (count, len) = (40, 40);
            let all_reduce = Shape::AllReduce { count }.program(Algorithm::Direct, rank, ranks, 1);
            let parts = |own: Span| -> Vec<_> {
                (0..ranks).map(|r| if r == rank { own } else { Span::scratch(r * len, len) }).collect()
            };
            assert_eq!(
                all_reduce.finish,
                Some(Finish::Reduce { parts: parts(Span::input(0, len)), to: Span::output(0, len) })
            );
            let counts = vec![count; ranks];
            let scatter = Shape::ReduceScatter { counts }.program(Algorithm::Direct, rank, ranks, 1);
            let own = Span::input(rank * len, len);
            assert_eq!(scatter.finish, Some(Finish::Reduce { parts: parts(own), to: Span::output(0, len) }));
        }
    }
}
