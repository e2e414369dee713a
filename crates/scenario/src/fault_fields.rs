//! How faults are written: the field `kind`, and the fields that the kind has. Read and written as one [`Fault`].

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use serde_json::{Map, Value, json};

use crate::error::ScenarioError;
use crate::faults::{Direction, Fault, Targets, When, Which};
use crate::numbers::{Count, Duration, Host, Micros, Mtu, Probability, Seed, Share, Whole, first_seed};
use crate::read;
use crate::run;

/// A kind of fault as it is written.
struct Kind {
    /// The value of the field `kind`.
    kind: &'static str,
    /// The name of its type in the JSON Schema, and of its class in Python.
    title: &'static str,
    /// What it is.
    about: &'static str,
    /// Fields that it must have.
    required: &'static [&'static str],
    /// Fields that may be left open.
    open: &'static [&'static str],
}

/// Every kind of fault.
const KINDS: [Kind; 11] = [
    Kind {
        kind: "down",
        title: "Down",
        about: "Nothing gets through. At time 0 it is broken from the start.",
        required: &["targets"],
        open: &["at_us", "until_us"],
    },
    Kind {
        kind: "loss",
        title: "Loss",
        about: "Packets are lost at random.",
        required: &["targets", "probability"],
        open: &["at_us", "until_us", "direction"],
    },
    Kind {
        kind: "bit-errors",
        title: "BitErrors",
        about: "Bits are damaged at random; a damaged packet is dropped.",
        required: &["targets", "probability"],
        open: &["at_us", "until_us"],
    },
    Kind {
        kind: "slow",
        title: "Slow",
        about: "A link runs at a share of its rate.",
        required: &["targets", "share"],
        open: &["at_us", "until_us"],
    },
    Kind {
        kind: "mtu",
        title: "SmallMtu",
        about: "Longer packets are lost without a word; shorter and trimmed ones pass.",
        required: &["targets", "bytes"],
        open: &["at_us", "until_us"],
    },
    Kind {
        kind: "flap",
        title: "Flap",
        about: "Down and up again, several times.",
        required: &["targets", "down_us", "up_us"],
        open: &["at_us", "times"],
    },
    Kind {
        kind: "reboot",
        title: "Reboot",
        about: "Switches that are gone for a while.",
        required: &["targets", "down_us"],
        open: &["at_us"],
    },
    Kind {
        kind: "nic-port",
        title: "NicPort",
        about: "Ports of hosts without a carrier.",
        required: &["targets"],
        open: &["at_us", "until_us"],
    },
    Kind {
        kind: "transceiver",
        title: "Transceiver",
        about: "Ports of one switch that share a transceiver go down and up again together.",
        required: &["targets", "ports", "down_us"],
        open: &["at_us", "up_us", "times"],
    },
    Kind {
        kind: "broken",
        title: "Broken",
        about: "A share of the targets, chosen at random, is down for good. At time 0 it is broken from the start.",
        required: &["targets", "share"],
        open: &["at_us", "seed"],
    },
    Kind {
        kind: "random",
        title: "RandomFailures",
        about: "Each target fails and is repaired at random times, exponentially distributed.",
        required: &["targets", "mtbf_us", "mttr_us"],
        open: &["at_us", "until_us", "effect", "amount", "seed"],
    },
];

/// The fields of all kinds. [`KINDS`] says which of them a kind has; only those that may be left open have defaults that
/// anybody sees.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct FaultFields {
    /// What it hits: links (`p3/t0-17:up5--p3/t1-5`, `h12:p3--p3/t0-0:down12`), ports of hosts (`h12:p3`), switches
    /// (`p3/t1-5`); or all `links`, `host-links`, `fabric-links`, `switches`.
    targets: Vec<String>,
    /// When it begins, or may begin.
    at_us: Micros,
    /// When it is repaired; never if left open. Random failures end with the run if left open.
    until_us: Option<Micros>,
    /// That a packet is lost, or a bit damaged.
    probability: Probability,
    /// Which direction of the links loses packets: away from the hosts, towards them, or both.
    direction: Direction,
    /// What is left of the rate; of what is broken for good, how many of the targets.
    share: Share,
    /// Longest IP packet that passes, from its outermost IP header on.
    bytes: Mtu,
    /// Ports of the switch, downlinks counted before uplinks.
    ports: Vec<Host>,
    /// How long it is down each time.
    down_us: Duration,
    /// How long it is up in between.
    up_us: Duration,
    /// How often it goes down.
    times: Count,
    /// What a failure does.
    effect: Effect,
    /// Probability of loss or bit errors, or the share of the rate that is left.
    amount: Probability,
    /// Mean time between a repair and the next failure.
    mtbf_us: Duration,
    /// Mean time to repair.
    mttr_us: Duration,
    /// Which times, or which of the targets.
    seed: Seed,
}

impl Default for FaultFields {
    fn default() -> Self {
        FaultFields {
            targets: Vec::new(),
            at_us: Micros::default(),
            until_us: None,
            probability: Probability::of(0.0),
            // A damaged cable or connector harms what passes it either way.
            direction: Direction::Both,
            share: Share::of(1.0),
            bytes: Whole::of(65_535),
            ports: Vec::new(),
            down_us: Duration::of(1.0),
            // Not used if the transceiver goes down once.
            up_us: Duration::of(1.0),
            // A fault that is repaired once comes once.
            times: Whole::of(1),
            effect: Effect::Down,
            // A failure that takes a link or switch down has no amount.
            amount: Probability::of(0.0),
            mtbf_us: Duration::of(1.0),
            mttr_us: Duration::of(1.0),
            seed: first_seed(),
        }
    }
}

/// What a random failure does.
#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Effect {
    /// Nothing gets through.
    Down,
    /// Packets are lost.
    Loss,
    /// Bits are damaged.
    BitErrors,
    /// Less rate.
    Slow,
}

impl Kind {
    fn has(&self, field: &str) -> bool {
        self.required.contains(&field) || self.open.contains(&field)
    }

    /// Checks that the fields are those of the kind.
    fn check<E: de::Error>(&self, fields: &Map<String, Value>) -> Result<(), E> {
        if let Some(field) = fields.keys().find(|field| !self.has(field)) {
            let known: Vec<_> =
                self.required.iter().chain(self.open).map(|field| format!("`{field}`")).collect();
            let message = format!("unknown field `{field}`, expected one of {}", known.join(", "));
            return Err(read::at_field(field, &message));
        }
        match self.required.iter().find(|&&field| !fields.contains_key(field)) {
            Some(field) => Err(E::custom(format!("missing field `{field}`"))),
            None => Ok(()),
        }
    }

    /// The JSON Schema of the kind, from that of the fields of all kinds.
    fn schema(&self, all: &Schema) -> Value {
        let property = |&field: &&'static str| {
            let mut schema = all.get("properties").map(|fields| fields[field].clone()).unwrap_or_default();
            if let (Value::Object(schema), true) = (&mut schema, self.required.contains(&field)) {
                schema.remove("default");
            }
            (field.to_owned(), schema)
        };
        let mut properties: Map<_, _> = self.required.iter().chain(self.open).map(property).collect();
        properties.insert("kind".into(), json!({"type": "string", "const": self.kind}));
        let required: Vec<_> = ["kind"].iter().chain(self.required).collect();
        json!({
            "title": self.title,
            "description": self.about,
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        })
    }
}

impl Fault {
    /// Every kind, and the name of its type.
    pub fn kinds() -> impl Iterator<Item = (&'static str, &'static str)> {
        KINDS.iter().map(|kind| (kind.kind, kind.title))
    }

    /// The value of the field `kind`.
    pub fn kind(&self) -> &'static str {
        match (&self.targets.which, self.when, self.effect) {
            (Which::HostPorts, ..) => "nic-port",
            (Which::Switches, ..) => "reboot",
            (Which::Ports(_), ..) => "transceiver",
            (Which::Share { .. }, ..) => "broken",
            (Which::All, When::Repeated { .. }, _) => "flap",
            (Which::All, When::AtRandom { .. }, _) => "random",
            (Which::All, When::Once { .. }, effect) => effect.name(),
        }
    }

    /// Reads and checks a fault of the kind with this title, whose fields are written without the kind. `None` if there
    /// is no such kind.
    pub(crate) fn check_titled(title: &str, text: &str) -> Option<Result<(), ScenarioError>> {
        let kind = KINDS.iter().find(|kind| kind.title == title)?;
        let fault = read::from_json(text).and_then(|mut fields: Map<String, Value>| {
            fields.insert("kind".into(), kind.kind.into());
            read::from_json::<Fault>(&Value::Object(fields).to_string())
        });
        Some(fault.and_then(|fault| fault.check()))
    }
}

impl FaultFields {
    /// The fault of a kind whose fields these are.
    fn fault(self, kind: &str) -> Fault {
        let (at, until) = (self.at_us, self.until_us);
        let which = match kind {
            "nic-port" => Which::HostPorts,
            "reboot" => Which::Switches,
            "transceiver" => Which::Ports(self.ports),
            "broken" => Which::Share { share: self.share, seed: self.seed },
            _ => Which::All,
        };
        let when = match kind {
            "flap" | "reboot" | "transceiver" => {
                When::Repeated { at, down: self.down_us, up: self.up_us, times: self.times }
            }
            "random" => When::AtRandom { at, until, mtbf: self.mtbf_us, mttr: self.mttr_us, seed: self.seed },
            _ => When::Once { at, until },
        };
        let effect = match (kind, self.effect) {
            ("loss", _) => run::Effect::Loss(self.probability.get()),
            ("bit-errors", _) => run::Effect::BitErrors(self.probability.get()),
            ("slow", _) => run::Effect::Slow(self.share.get()),
            ("mtu", _) => run::Effect::Mtu(self.bytes.u16()),
            ("random", Effect::Loss) => run::Effect::Loss(self.amount.get()),
            ("random", Effect::BitErrors) => run::Effect::BitErrors(self.amount.get()),
            ("random", Effect::Slow) => run::Effect::Slow(self.amount.get()),
            _ => run::Effect::Down,
        };
        let direction = self.direction;
        Fault { targets: Targets { names: self.targets, which }, when, effect, direction }
    }

    /// The fields of a fault, of which its kind has some.
    fn of(fault: &Fault) -> Self {
        let mut fields = FaultFields {
            targets: fault.targets.names.clone(),
            direction: fault.direction,
            ..FaultFields::default()
        };
        match &fault.targets.which {
            Which::All | Which::HostPorts | Which::Switches => {}
            Which::Ports(ports) => fields.ports.clone_from(ports),
            Which::Share { share, seed } => (fields.share, fields.seed) = (*share, *seed),
        }
        match fault.when {
            When::Once { at, until } => (fields.at_us, fields.until_us) = (at, until),
            When::Repeated { at, down, up, times } => {
                (fields.at_us, fields.down_us, fields.up_us, fields.times) = (at, down, up, times);
            }
            When::AtRandom { at, until, mtbf, mttr, seed } => {
                (fields.at_us, fields.until_us, fields.seed) = (at, until, seed);
                (fields.mtbf_us, fields.mttr_us) = (mtbf, mttr);
            }
        }
        let (effect, amount) = match fault.effect {
            run::Effect::Down => return fields,
            run::Effect::Loss(amount) => (Effect::Loss, amount),
            run::Effect::BitErrors(amount) => (Effect::BitErrors, amount),
            run::Effect::Slow(amount) => (Effect::Slow, amount),
            run::Effect::Mtu(bytes) => {
                fields.bytes = Whole::of(bytes.into());
                return fields;
            }
        };
        fields.effect = effect;
        let probability = Probability::new(amount).unwrap_or(fields.probability);
        (fields.probability, fields.amount) = (probability, probability);
        fields.share = Share::new(amount).unwrap_or(fields.share);
        fields
    }
}

impl<'de> Deserialize<'de> for Fault {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut fields = Map::deserialize(deserializer)?;
        let name = read::take_kind::<D::Error>(&mut fields)?;
        let Some(kind) = KINDS.iter().find(|kind| kind.kind == name) else {
            return Err(read::unknown_kind(&name, Fault::kinds().map(|(kind, _)| kind)));
        };
        kind.check::<D::Error>(&fields)?;
        let fields: FaultFields = read::inner(fields.into())?;
        Ok(fields.fault(kind.kind))
    }
}

impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = serde_json::to_value(FaultFields::of(self)).map_err(ser::Error::custom)?;
        let Value::Object(mut fields) = fields else {
            return Err(ser::Error::custom("fields are an object"));
        };
        if let Some(kind) = KINDS.iter().find(|kind| kind.kind == self.kind()) {
            fields.retain(|field, _| kind.has(field));
            fields.insert("kind".into(), kind.kind.into());
        }
        fields.serialize(serializer)
    }
}

impl JsonSchema for Fault {
    fn schema_name() -> Cow<'static, str> {
        "Fault".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let all = FaultFields::json_schema(generator);
        let kinds: Vec<Value> = KINDS.iter().map(|kind| kind.schema(&all)).collect();
        schemars::json_schema!({ "description": "Something that breaks.", "oneOf": kinds })
    }
}
