//! What an array may hold.

/// A plain number, or a fixed number of them: a type of which every bit pattern is a value.
///
/// What the device leaves in memory is read back as this type, whatever it is: so `bool`, `char`, references and enums
/// are out. The integers, the floats and arrays of elements are in; for a type of your own:
///
/// ```
/// #[derive(Clone, Copy, Debug)]
/// #[repr(C)]
/// struct Particle { at: [f32; 3], mass: f32 }
/// // SAFETY: four `f32` in C's layout: no padding, and every bit pattern is a value.
/// unsafe impl millpond::Element for Particle {}
/// ```
///
/// # Safety
/// Every bit pattern is a valid value, there is no padding, and the value holds no pointer that anybody follows.
#[allow(unsafe_code, reason = "a marker that reading back from the device rests on")]
pub unsafe trait Element: Copy + Send + Sync + 'static {}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        // SAFETY: a number without padding, all of whose bit patterns are values.
        #[allow(unsafe_code, reason = "the marker of `Element`")]
        unsafe impl Element for $number {}
    )*};
}

numbers! { u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64 }

// SAFETY: elements one after the other, with nothing in between.
#[allow(unsafe_code, reason = "the marker of `Element`")]
unsafe impl<T: Element, const N: usize> Element for [T; N] {}
