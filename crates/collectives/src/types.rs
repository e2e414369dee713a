//! Element types and reductions (docs/spec/collectives.md, "Collectives").

/// Type of the elements of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum DataType {
    /// IEEE double precision.
    Float64,
    /// IEEE single precision.
    Float32,
    /// IEEE half precision.
    Float16,
    /// The upper half of single precision.
    BFloat16,
    /// Eight bits, four of exponent, no infinity (OCP OFP8 E4M3).
    Float8E4M3,
    /// Eight bits, five of exponent (OCP OFP8 E5M2).
    Float8E5M2,
    /// Signed, 8 bits.
    Int8,
    /// Signed, 16 bits.
    Int16,
    /// Signed, 32 bits.
    Int32,
    /// Signed, 64 bits.
    Int64,
    /// Unsigned, 8 bits.
    UInt8,
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned, 16 bits.
    UInt16,
    /// Unsigned, 32 bits.
    UInt32,
    /// Unsigned, 64 bits.
    UInt64,
}

impl DataType {
    /// All types, in the order of their codes.
    pub const ALL: [DataType; 15] = [
        DataType::Float64,
        DataType::Float32,
        DataType::Float16,
        DataType::BFloat16,
        DataType::Float8E4M3,
        DataType::Float8E5M2,
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::UInt8,
        DataType::Bool,
        DataType::UInt16,
        DataType::UInt32,
        DataType::UInt64,
    ];

    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            DataType::Float64 | DataType::Int64 | DataType::UInt64 => 8,
            DataType::Float32 | DataType::Int32 | DataType::UInt32 => 4,
            DataType::Float16 | DataType::BFloat16 | DataType::Int16 | DataType::UInt16 => 2,
            _ => 1,
        }
    }

    /// Its name, as NumPy and torch write it.
    pub const fn name(self) -> &'static str {
        match self {
            DataType::Float64 => "float64",
            DataType::Float32 => "float32",
            DataType::Float16 => "float16",
            DataType::BFloat16 => "bfloat16",
            DataType::Float8E4M3 => "float8_e4m3fn",
            DataType::Float8E5M2 => "float8_e5m2",
            DataType::Int8 => "int8",
            DataType::Int16 => "int16",
            DataType::Int32 => "int32",
            DataType::Int64 => "int64",
            DataType::UInt8 => "uint8",
            DataType::Bool => "bool",
            DataType::UInt16 => "uint16",
            DataType::UInt32 => "uint32",
            DataType::UInt64 => "uint64",
        }
    }

    /// The type with this name.
    pub fn from_name(name: &str) -> Option<DataType> {
        Self::ALL.into_iter().find(|each| each.name() == name)
    }

    /// The type with this code.
    pub fn from_code(code: u8) -> Option<DataType> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Whether its values have a fraction.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            DataType::Float64
                | DataType::Float32
                | DataType::Float16
                | DataType::BFloat16
                | DataType::Float8E4M3
                | DataType::Float8E5M2
        )
    }
}

/// How elements of several ranks become one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum ReduceOp {
    /// The sum. Of `bool`: whether any is set.
    Sum,
    /// The product. Of `bool`: whether all are set.
    Product,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The sum divided by the number of ranks; integers are rounded towards zero.
    Avg,
    /// Bitwise and, integers and `bool` only.
    BitAnd,
    /// Bitwise or, integers and `bool` only.
    BitOr,
    /// Bitwise exclusive or, integers and `bool` only.
    BitXor,
}

impl ReduceOp {
    /// All reductions, in the order of their codes.
    pub const ALL: [ReduceOp; 8] = [
        ReduceOp::Sum,
        ReduceOp::Product,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Avg,
        ReduceOp::BitAnd,
        ReduceOp::BitOr,
        ReduceOp::BitXor,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Product => "product",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Avg => "avg",
            ReduceOp::BitAnd => "band",
            ReduceOp::BitOr => "bor",
            ReduceOp::BitXor => "bxor",
        }
    }

    /// The reduction with this name.
    pub fn from_name(name: &str) -> Option<ReduceOp> {
        Self::ALL.into_iter().find(|each| each.name() == name)
    }

    /// The reduction with this code.
    pub fn from_code(code: u8) -> Option<ReduceOp> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Whether elements of this type can be reduced so.
    pub const fn fits(self, dtype: DataType) -> bool {
        match self {
            ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => !dtype.is_float(),
            ReduceOp::Avg => !matches!(dtype, DataType::Bool),
            _ => true,
        }
    }
}
