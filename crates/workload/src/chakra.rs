//! Chakra execution traces: what one rank of a recorded job did (docs/spec/workloads.md, "2 Chakra execution traces").
//! Only nodes that can be replayed are read; others are refused by name.

use std::collections::HashMap;

use openmrc_transport::Span;

/// What a rank does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// A computation.
    Compute(Span),
    /// A collective operation.
    Collective(Collective),
    /// A message to a rank.
    Send {
        /// The receiver.
        to: u64,
        /// Its tag.
        tag: u64,
        /// Its length.
        bytes: u64,
    },
    /// A message from a rank.
    Receive {
        /// The sender.
        from: u64,
        /// Its tag.
        tag: u64,
    },
}

/// A collective operation, alike at all ranks of its group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Collective {
    /// Which one.
    pub kind: CollectiveKind,
    /// `comm_size`: see [`CollectiveKind`].
    pub bytes: u64,
    /// Name of the group; empty: all ranks.
    pub group: String,
    /// Place of the root in the group.
    pub root: u64,
    /// The algorithm that was recorded; empty: not known.
    pub algorithm: String,
}

/// Kinds of collective operations, and what their `comm_size` is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CollectiveKind {
    /// The buffer.
    AllReduce,
    /// The buffer.
    Reduce,
    /// The input of one rank.
    AllGather,
    /// The input of one rank.
    Gather,
    /// The output of one rank.
    Scatter,
    /// The buffer.
    Broadcast,
    /// The whole buffer of one rank.
    AllToAll,
    /// The whole input.
    ReduceScatter,
    /// Nothing.
    Barrier,
}

/// A node: it begins when all nodes before it have ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its number in the trace.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// What it is.
    pub work: Work,
    /// Nodes that it waits for.
    pub after: Vec<u64>,
}

/// The nodes of a trace in the order of the file.
///
/// # Errors
/// If it is no trace of this form; the message names node and attribute.
pub fn read(bytes: &[u8]) -> Result<Vec<Node>, String> {
    if bytes.starts_with(&[0x1f, 0x8b]) {
        return Err("it is compressed; unpack it with gunzip".into());
    }
    if bytes.starts_with(b"{") {
        return Err("it is JSON, not a Chakra execution trace".into());
    }
    let mut reader = Reader(bytes);
    let mut nodes = Vec::new();
    let metadata = reader.block().ok_or("it is no Chakra execution trace")?;
    // A node begins with its number, field 1 as a varint; metadata begin with the version, a text.
    if metadata.first() == Some(&0x08) {
        return Err("it has no metadata: traces of Chakra 0.0.1 are not read".into());
    }
    while !reader.0.is_empty() {
        let record = reader.block().ok_or("it ends within a record")?;
        nodes.push(node(record)?);
    }
    Ok(nodes)
}

fn node(record: &[u8]) -> Result<Node, String> {
    let (mut id, mut kind, mut duration_us) = (0, 0, 0);
    let (mut name, mut after, mut attributes) = (String::new(), Vec::new(), HashMap::new());
    let mut reader = Reader(record);
    let broken = |id: u64| format!("node {id}: its record is broken");
    while !reader.0.is_empty() {
        match reader.field().ok_or_else(|| broken(id))? {
            (1, Field::Number(value)) => id = value,
            (2, Field::Block(text)) => name = String::from_utf8_lossy(text).into_owned(),
            (3, Field::Number(value)) => kind = value,
            (4 | 5, Field::Number(value)) => after.push(value),
            (4 | 5, Field::Block(packed)) => {
                let mut numbers = Reader(packed);
                while !numbers.0.is_empty() {
                    after.push(numbers.varint().ok_or_else(|| broken(id))?);
                }
            }
            (7, Field::Number(value)) => duration_us = value,
            (10, Field::Block(text)) => {
                if let Some((name, value)) = attribute(text).ok_or_else(|| broken(id))? {
                    attributes.insert(name, value);
                }
            }
            _ => {}
        }
    }
    after.sort_unstable();
    after.dedup();
    let number = |key: &str| match attributes.get(key) {
        Some(Attribute::Number(value)) => Some(*value),
        _ => None,
    };
    let text = |key: &str| match attributes.get(key) {
        Some(Attribute::Text(value)) => value.clone(),
        _ => String::new(),
    };
    let needed = |key: &str| number(key).ok_or_else(|| format!("node {id} ({name}) has no {key}"));
    let work = match kind {
        // Metadata, and nodes that do nothing, still order others.
        0 | 1 => Work::Compute(Span::ZERO),
        2..=4 => Work::Compute(Span::from_micros(duration_us)),
        5 => Work::Send {
            to: needed("comm_dst")?,
            tag: number("comm_tag").unwrap_or(0),
            bytes: needed("comm_size")?,
        },
        6 => Work::Receive { from: needed("comm_src")?, tag: number("comm_tag").unwrap_or(0) },
        7 => Work::Collective(Collective {
            kind: collective(needed("comm_type")?)
                .ok_or_else(|| format!("node {id} ({name}): there is no such comm_type"))?,
            bytes: number("comm_size").unwrap_or(0),
            group: Some(text("pg_name")).filter(|group| group != "0").unwrap_or_default(),
            root: number("root").unwrap_or(0),
            algorithm: text("algorithm"),
        }),
        other => return Err(format!("node {id} ({name}) is of the unknown type {other}")),
    };
    Ok(Node { id, name, work, after })
}

fn collective(comm_type: u64) -> Option<CollectiveKind> {
    Some(match comm_type {
        0 => CollectiveKind::AllReduce,
        1 => CollectiveKind::Reduce,
        2 => CollectiveKind::AllGather,
        3 => CollectiveKind::Gather,
        4 => CollectiveKind::Scatter,
        5 => CollectiveKind::Broadcast,
        6 => CollectiveKind::AllToAll,
        7 | 8 => CollectiveKind::ReduceScatter,
        9 => CollectiveKind::Barrier,
        _ => return None,
    })
}

enum Attribute {
    Number(u64),
    Text(String),
}

/// Name and value of an attribute; of lists and real numbers `None`. Outer `None`: it is broken.
fn attribute(record: &[u8]) -> Option<Option<(String, Attribute)>> {
    let mut reader = Reader(record);
    let (mut name, mut value) = (String::new(), None);
    while !reader.0.is_empty() {
        match reader.field()? {
            (1, Field::Block(text)) => name = String::from_utf8_lossy(text).into_owned(),
            // int32, int64, uint32, uint64, bool; sint32, sint64; fixed32, fixed64, sfixed32, sfixed64.
            (7 | 9 | 11 | 13 | 27, Field::Number(number)) => value = Some(Attribute::Number(number)),
            (15 | 17, Field::Number(number)) => value = Some(Attribute::Number(number >> 1)),
            (19 | 21 | 23 | 25, Field::Number(number)) => value = Some(Attribute::Number(number)),
            (29, Field::Block(text)) => {
                value = Some(Attribute::Text(String::from_utf8_lossy(text).into_owned()));
            }
            _ => {}
        }
    }
    Some(value.map(|value| (name, value)))
}

/// A field of a message in the encoding of Protocol Buffers.
enum Field<'b> {
    Number(u64),
    Block(&'b [u8]),
}

struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, len: usize) -> Option<&'b [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    /// A length, and as many bytes.
    fn block(&mut self) -> Option<&'b [u8]> {
        let len = usize::try_from(self.varint()?).ok()?;
        self.take(len)
    }

    /// The number of a field, and its value.
    fn field(&mut self) -> Option<(u64, Field<'b>)> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Field::Number(self.varint()?),
            1 => Field::Number(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => Field::Block(self.block()?),
            5 => Field::Number(u32::from_le_bytes(self.take(4)?.try_into().ok()?).into()),
            _ => return None,
        };
        Some((key >> 3, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first rank of the pair of traces in the specification's section 2.10, made with protobuf.
    const PAIR: &str = "
        070a05312e302e303d08011203667764180438ac02520e0a0969735f6370755f
        6f70d80100520d0a076e756d5f6f707348c0843d52100a0b74656e736f725f73
        697a656880204a08021202617218072a0101520e0a0969735f6370755f6f70d8
        0100520d0a09636f6d6d5f747970654800520f0a09636f6d6d5f73697a654880
        8040520d0a0770675f6e616d65ea0101374a08031202747818052201022a0201
        02520f0a09636f6d6d5f73697a6548808004520c0a08636f6d6d5f7372633800
        520c0a08636f6d6d5f6473743801520c0a08636f6d6d5f7461673805";

    fn pair() -> Vec<u8> {
        let digits: Vec<u8> =
            PAIR.bytes().filter_map(|c| (c as char).to_digit(16)).map(|d| d as u8).collect();
        digits.chunks(2).map(|two| two[0] << 4 | two[1]).collect()
    }

    #[test]
    fn the_pair_of_the_specification_is_read() {
        let nodes = read(&pair()).unwrap();
        let all_reduce = Collective {
            kind: CollectiveKind::AllReduce,
            bytes: 1 << 20,
            group: "7".into(),
            root: 0,
            algorithm: String::new(),
        };
        let expected = [
            (1, "fwd", Work::Compute(Span::from_micros(300)), vec![]),
            (2, "ar", Work::Collective(all_reduce), vec![1]),
            (3, "tx", Work::Send { to: 1, tag: 5, bytes: 65_536 }, vec![1, 2]),
        ];
        for (node, (id, name, work, after)) in nodes.iter().zip(expected) {
            assert_eq!((node.id, node.name.as_str(), &node.work, &node.after), (id, name, &work, &after));
        }
        assert_eq!(nodes.len(), 3);
    }

    #[test]
    fn a_cut_trace_is_an_error_unless_it_is_cut_between_nodes() {
        let bytes = pair();
        let ends = [8, 8 + 62, 8 + 62 + 75, bytes.len()];
        for len in 1..bytes.len() {
            assert_eq!(read(&bytes[..len]).is_ok(), ends.contains(&len), "{len}");
        }
        assert!(read(b"").is_err());
    }

    #[test]
    fn other_forms_are_named() {
        assert!(read(&[0x1f, 0x8b, 8]).unwrap_err().contains("gunzip"));
        assert!(read(b"{\"a\": 1}").unwrap_err().contains("JSON"));
        assert!(read(&[2, 0x08, 1]).unwrap_err().contains("0.0.1"));
        let no_peer = [1, 0x0a, 4, 0x08, 9, 0x18, 5];
        assert!(read(&no_peer[..]).is_err());
    }
}
