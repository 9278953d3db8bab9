//! Where a kernel's CPU reference and the device disagree.

/// The first element that differs between a kernel and its CPU reference
/// ([`Stream::launch_and_compare`](crate::Stream::launch_and_compare)).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{kernel}: element {index} of argument {argument}, of type {element}, is {} by the CPU reference and {} on the \
     device: one of the two does not do what was meant",
    self.shown().0,
    self.shown().1
)]
#[non_exhaustive]
pub struct Difference {
    /// The kernel's name.
    pub kernel: String,
    /// The array's index among the launch's arguments, counted from 0, numbers included.
    pub argument: usize,
    /// The name of its elements' type.
    pub element: &'static str,
    /// Which element of that argument, in memory order, counted from 0.
    pub index: usize,
    /// The element of the reference: its bytes in memory.
    pub expected: Vec<u8>,
    /// The element on the device.
    pub found: Vec<u8>,
}

impl Difference {
    pub(crate) fn new(
        kernel: String,
        (argument, element, index): (usize, &'static str, usize),
        (expected, found): (&[u8], &[u8]),
    ) -> Difference {
        Difference { kernel, argument, element, index, expected: expected.to_vec(), found: found.to_vec() }
    }
    /// The values of the reference and of the device, as values of a type; `None` if that has another length.
    pub fn values<T: bytemuck::AnyBitPattern>(&self) -> Option<(T, T)> {
        let value = |bytes: &[u8]| bytemuck::try_pod_read_unaligned(bytes).ok();
        value(&self.expected).zip(value(&self.found))
    }
    /// Both as text: as numbers if the type is one, else as bytes.
    fn shown(&self) -> (String, String) {
        macro_rules! number {
            ($($number:ident)*) => {
                match self.element {
                    $(stringify!($number) => self.values::<$number>().map(|(a, b)| (format!("{a:?}"), format!("{b:?}"))),)*
                    _ => None,
                }
            };
        }
        number!(u8 i8 u16 i16 u32 i32 u64 i64 u128 i128 usize isize f32 f64)
            .unwrap_or_else(|| (format!("{:x?}", self.expected), format!("{:x?}", self.found)))
    }
}
