//! Every operation between ranks on loopback: through shared memory and over the network.

mod common;

use std::time::Duration;

use common::{LONG, connect, devices, in_parallel, lent, lent_mut};
use openmrc_collectives::{Algorithm, Call, Communicator, DataType, Error, Options, ReduceOp, Shape};

fn call<T, U>(
    comm: &Communicator,
    shape: Shape,
    dtype: DataType,
    input: &[T],
    output: &mut [U],
) -> Result<(), Error> {
    call_with(comm, shape, dtype, ReduceOp::Sum, None, input, output)
}

fn call_with<T, U>(
    comm: &Communicator,
    shape: Shape,
    dtype: DataType,
    op: ReduceOp,
    algorithm: Option<Algorithm>,
    input: &[T],
    output: &mut [U],
) -> Result<(), Error> {
    let (ins, outs) = shape.sizes(comm.rank(), comm.size());
    assert_eq!((size_of_val(input), size_of_val(output)), (ins * dtype.size(), outs * dtype.size()));
    let call = Call {
        shape,
        dtype,
        op,
        factor: None,
        input: lent(input),
        output: Some(lent_mut(output)),
        algorithm,
        timeout: LONG,
    };
    let work = comm.call(call)?;
    assert!(work.wait(Some(Duration::from_secs(90))), "{} hangs", work.name());
    work.result().unwrap()
}

fn both_ways(ranks: usize, planes: usize, body: impl Fn(&Communicator) + Sync) {
    for shared_memory in [true, false] {
        let devices = devices(ranks, planes);
        let comms = connect(&devices, &Options { shared_memory, ..Options::default() });
        assert_eq!(comms[0].local_peers().len(), if shared_memory { ranks - 1 } else { 0 });
        in_parallel(&comms, &body);
        let (operations, shared, network) = comms[0].totals();
        if operations > 0 {
            assert_eq!((shared > 0, network > 0), (shared_memory, !shared_memory));
        }
    }
}

fn value(rank: usize, i: usize) -> f32 {
    ((rank * 31 + i * 7) % 1000) as f32
}

#[test]
fn all_reduce_by_every_algorithm_and_size() {
    both_ways(4, 4, |comm| {
        let n = comm.size();
        for count in [1, 5, 1000, 40_000, 1_200_001] {
            let input: Vec<f32> = (0..count).map(|i| value(comm.rank(), i)).collect();
            let expected: Vec<f32> = (0..count).map(|i| (0..n).map(|r| value(r, i)).sum()).collect();
            let shape = Shape::AllReduce { count };
            for algorithm in Algorithm::ALL.into_iter().filter(|&a| shape.allows(a, n)) {
                let mut output = vec![0f32; count];
                let op = ReduceOp::Sum;
                call_with(comm, shape.clone(), DataType::Float32, op, Some(algorithm), &input, &mut output)
                    .unwrap();
                assert!(output == expected, "{} of {count}", algorithm.name());
            }
        }
    });
}

#[test]
fn the_other_operations() {
    both_ways(3, 2, |comm| {
        let (rank, n) = (comm.rank(), comm.size());
        let block = |r: usize, len: usize| (0..len).map(|i| (r * 1000 + i) as i64).collect::<Vec<_>>();
        for len in [1, 700, 50_000] {
            let lens: Vec<usize> = (0..n).map(|r| len + r).collect();
            let mut all = vec![0i64; lens.iter().sum()];
            let shape = Shape::AllGather { counts: lens.clone() };
            call(comm, shape, DataType::Int64, &block(rank, lens[rank]), &mut all).unwrap();
            assert_eq!(all, (0..n).flat_map(|r| block(r, lens[r])).collect::<Vec<_>>());

            let mut part = vec![0i64; lens[rank]];
            let whole = block(rank, lens.iter().sum());
            call(comm, Shape::ReduceScatter { counts: lens.clone() }, DataType::Int64, &whole, &mut part)
                .unwrap();
            let begin: usize = lens[..rank].iter().sum();
            let expected =
                (0..lens[rank]).map(|i| (0..n).map(|r| (r * 1000 + begin + i) as i64).sum::<i64>());
            assert!(part.iter().copied().eq(expected));

            let mut mixed = vec![0i64; n * len];
            let mine: Vec<i64> = (0..n).flat_map(|to| block(rank * 10 + to, len)).collect();
            let counts = vec![len; n];
            let shape = Shape::AllToAll { send: counts.clone(), recv: counts };
            call(comm, shape, DataType::Int64, &mine, &mut mixed).unwrap();
            assert_eq!(mixed, (0..n).flat_map(|from| block(from * 10 + rank, len)).collect::<Vec<_>>());

            for root in 0..n {
                let at_root = |v: Vec<i64>| if rank == root { v } else { Vec::new() };
                let mut copy = vec![0i64; len];
                call(
                    comm,
                    Shape::Broadcast { root, count: len },
                    DataType::Int64,
                    &at_root(block(7, len)),
                    &mut copy,
                )
                .unwrap();
                assert_eq!(copy, block(7, len));

                let mut sum = at_root(vec![0i64; len]);
                call(comm, Shape::Reduce { root, count: len }, DataType::Int64, &block(rank, len), &mut sum)
                    .unwrap();
                assert_eq!(
                    sum,
                    at_root((0..len).map(|i| (0..n).map(|r| (r * 1000 + i) as i64).sum()).collect())
                );

                let mut all = at_root(vec![0i64; n * len]);
                call(comm, Shape::Gather { root, count: len }, DataType::Int64, &block(rank, len), &mut all)
                    .unwrap();
                assert_eq!(all, at_root((0..n).flat_map(|r| block(r, len)).collect()));

                let mut part = vec![0i64; len];
                let all = at_root((0..n).flat_map(|r| block(r, len)).collect());
                call(comm, Shape::Scatter { root, count: len }, DataType::Int64, &all, &mut part).unwrap();
                assert_eq!(part, block(rank, len));
            }
        }
        call::<u8, u8>(comm, Shape::Barrier, DataType::UInt8, &[], &mut []).unwrap();
    });
}

#[test]
fn averages_and_factors() {
    both_ways(2, 1, |comm| {
        for count in [10, 100_000] {
            let input = vec![comm.rank() as f32 + 1.0; count];
            let mut output = vec![0f32; count];
            call_with(
                comm,
                Shape::AllReduce { count },
                DataType::Float32,
                ReduceOp::Avg,
                None,
                &input,
                &mut output,
            )
            .unwrap();
            assert!(output.iter().all(|&x| x == 1.5));
            let call = Call {
                shape: Shape::AllReduce { count },
                dtype: DataType::Float32,
                op: ReduceOp::Sum,
                factor: Some(0.25),
                input: lent(&input),
                output: Some(lent_mut(&mut output)),
                algorithm: None,
                timeout: LONG,
            };
            let work = comm.call(call).unwrap();
            assert!(work.wait(Some(LONG)));
            work.result().unwrap().unwrap();
            assert!(output.iter().all(|&x| x == 0.75));
        }
    });
}

#[test]
fn messages_are_matched_by_peer_and_tag() {
    both_ways(3, 2, |comm| {
        let (rank, n) = (comm.rank(), comm.size());
        let lens = [0usize, 10, 70_000, 3_000_000];
        let message = |from: usize, tag: usize| vec![(from * 16 + tag) as u8; lens[tag]];
        // Everyone sends four messages to everyone and receives them in the opposite order.
        let out: Vec<Vec<u8>> = (0..4).map(|tag| message(rank, tag)).collect();
        let mut works = Vec::new();
        for peer in (0..n).filter(|&peer| peer != rank) {
            for (tag, data) in out.iter().enumerate() {
                works.push(comm.send(peer, tag as u64, lent(data), DataType::UInt8, LONG).unwrap());
            }
        }
        for peer in (0..n).filter(|&peer| peer != rank) {
            for tag in (0..4).rev() {
                let mut data = vec![0u8; lens[tag]];
                let work =
                    comm.recv(Some(peer), tag as u64, lent_mut(&mut data), DataType::UInt8, LONG).unwrap();
                assert!(work.wait(Some(LONG)), "{}", work.name());
                work.result().unwrap().unwrap();
                assert!(data == message(peer, tag), "tag {tag} from {peer}");
            }
        }
        for work in works {
            assert!(work.wait(Some(LONG)));
            work.result().unwrap().unwrap();
        }
        // From anyone.
        if rank == 0 {
            let mut seen = Vec::new();
            for _ in 1..n {
                let mut data = [0u8; 4];
                let work = comm.recv(None, 9, lent_mut(&mut data), DataType::UInt8, LONG).unwrap();
                assert!(work.wait(Some(LONG)));
                assert_eq!(Some(data[0] as usize), work.source());
                seen.push(data[0]);
            }
            seen.sort();
            assert_eq!(seen, [1, 2]);
        } else {
            let data = [rank as u8; 4];
            let work = comm.send(0, 9, lent(&data), DataType::UInt8, LONG).unwrap();
            assert!(work.wait(Some(LONG)));
        }
    });
}

#[test]
fn many_operations_under_way_that_nobody_waits_for() {
    both_ways(2, 2, |comm| {
        let mut buffers: Vec<Vec<f32>> = (0..50).map(|k| vec![k as f32; 1 + k * 1000]).collect();
        let works: Vec<_> = buffers
            .iter_mut()
            .map(|buffer| {
                let call = Call {
                    shape: Shape::AllReduce { count: buffer.len() },
                    dtype: DataType::Float32,
                    op: ReduceOp::Sum,
                    factor: None,
                    input: lent_mut(buffer),
                    output: None,
                    algorithm: None,
                    timeout: LONG,
                };
                comm.call(call).unwrap()
            })
            .collect();
        let begin = std::time::Instant::now();
        while !works.iter().all(|work| work.is_done()) {
            assert!(begin.elapsed() < LONG);
            std::thread::sleep(Duration::from_millis(1));
        }
        for (k, (work, buffer)) in works.iter().zip(&buffers).enumerate() {
            work.result().unwrap().unwrap();
            assert!(buffer.iter().all(|&x| x == 2.0 * k as f32));
        }
    });
}

#[test]
fn different_calls_are_named() {
    both_ways(2, 1, |comm| {
        let input = vec![1f32; 100];
        let mut output = vec![0f32; 100];
        let count = 100 - 10 * comm.rank();
        let result =
            call(comm, Shape::AllReduce { count }, DataType::Float32, &input[..count], &mut output[..count]);
        let words = result.unwrap_err().to_string();
        // Who sees it first says what both called; the other is told.
        assert!(
            words.contains("all_reduce of 100 float32") && words.contains("all_reduce of 90 float32")
                || words.contains("called different operations"),
            "{words}"
        );
        let again =
            call::<f32, f32>(comm, Shape::AllReduce { count: 1 }, DataType::Float32, &[1.0], &mut [0.0]);
        assert!(again.is_err());
    });
}

#[test]
fn a_rank_that_does_not_call_is_named() {
    both_ways(3, 1, |comm| {
        if comm.rank() == 1 {
            // It does nothing until the others have given up.
            while comm.error().is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
            return;
        }
        let (input, mut output) = ([1f32; 4], [0f32; 4]);
        let call = Call {
            shape: Shape::AllReduce { count: 4 },
            dtype: DataType::Float32,
            op: ReduceOp::Sum,
            factor: None,
            input: lent(&input),
            output: Some(lent_mut(&mut output)),
            algorithm: Some(Algorithm::Direct),
            timeout: Duration::from_millis(300),
        };
        let work = comm.call(call).unwrap();
        assert!(work.wait(Some(LONG)));
        let words = work.result().unwrap().unwrap_err().to_string();
        assert!(
            words.contains("data of rank 1 on h1 is missing") || words.contains("did not end in time"),
            "{words}"
        );
    });
}

#[test]
fn an_abort_reaches_everyone() {
    both_ways(3, 2, |comm| {
        if comm.rank() == 2 {
            std::thread::sleep(Duration::from_millis(50));
            comm.abort("enough");
            return;
        }
        let (input, mut output) = ([1f32; 4], [0f32; 4]);
        let words = call(comm, Shape::AllReduce { count: 4 }, DataType::Float32, &input, &mut output)
            .unwrap_err()
            .to_string();
        assert!(words.contains("rank 2 has aborted it"), "{words}");
    });
}
