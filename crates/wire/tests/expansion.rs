//! OCP's example program for EV expansion (examples/ev_expansion): its ten cases, line by line.

use openmrc_wire::EvFormat;
use openmrc_wire::expansion::{EvField, EvString, check_fit, expand};

/// What the program prints, with one line for each EV, field list and expansion.
const PRINTED: &str = include_str!("data/ocp_ev_expansion.txt");

/// A case: format, profile and EVs.
#[derive(Default)]
struct Case<'a> {
    name: &'a str,
    widths: Vec<u32>,
    profile: Vec<EvField>,
    ev: Option<EvString>,
}

impl Case<'_> {
    fn format(&self) -> EvFormat {
        match (self.name.starts_with("srv6"), self.widths.iter().sum::<u32>() > 128) {
            (false, _) => EvFormat::Structured,
            (true, false) => EvFormat::Srv6,
            (true, true) => EvFormat::Srv6Srh,
        }
    }

    fn expanded(&self) -> [u8; 32] {
        let ev = self.ev.expect("an EV before its expansion");
        let out = expand(self.format(), &self.widths, &self.profile, &ev).expect(self.name);
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&out.destination().octets());
        bytes[16..].copy_from_slice(&out.segment().octets());
        assert_eq!(out.structured().0.to_be_bytes(), bytes[..4]);
        assert_eq!((out.udp().0 as u16).to_be_bytes(), bytes[..2]);
        bytes
    }

    /// The value of each profile field in the expansion, as the program prints it.
    fn fields(&self) -> String {
        let bytes = self.expanded();
        let bit = |at: u32| u64::from(bytes[at as usize / 8] >> (7 - at % 8) & 1);
        let mut begin = 0;
        let mut text = Vec::new();
        for (i, &width) in self.widths.iter().enumerate().take(self.profile.len()) {
            let value = (begin..begin + width).fold(0, |value, at| value << 1 | bit(at));
            text.push(format!("fld{i}=0x{value:0digits$x}", digits = width.div_ceil(4) as usize));
            begin += width;
        }
        text.join(" ")
    }
}

fn hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn number(text: &str) -> u32 {
    let digits = text.strip_prefix("0x");
    digits.map_or_else(|| text.parse(), |digits| u32::from_str_radix(digits, 16)).expect(text)
}

#[test]
fn every_line_of_the_example_program_is_reproduced() {
    let (mut cases, mut lines) = (0, 0);
    let mut case = Case::default();
    for line in PRINTED.lines() {
        match *line.split_whitespace().collect::<Vec<_>>() {
            [] => {}
            ["case", name] => {
                case = Case { name, ..Case::default() };
                cases += 1;
            }
            ["format", ref widths @ ..] => case.widths = widths.iter().map(|text| number(text)).collect(),
            ["field", width, init, min, max, mask] => case.profile.push(EvField {
                width: number(width),
                init: number(init),
                min: number(min),
                max: number(max),
                mask: number(mask),
            }),
            ["ev", bits] => {
                check_fit(case.format(), &case.widths, &case.profile).expect(case.name);
                let byte = |i: usize| u8::from_str_radix(&bits[2 * i..2 * i + 2], 16).expect(bits);
                case.ev = Some(EvString(core::array::from_fn(byte)));
            }
            [expanded] if expanded.len() == 64 => {
                assert_eq!(hex(&case.expanded()), expanded, "{}", case.name);
                lines += 1;
            }
            _ => {
                assert_eq!(case.fields(), line.trim(), "{}", case.name);
                lines += 1;
            }
        }
    }
    assert_eq!((cases, lines), (10, 160));
    println!("OCP's ev_expansion: {cases} cases, {lines} lines compared");
}
