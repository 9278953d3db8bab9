//! Shuttle's atomics, which announce each operation before they do it.

use super::super::next::{Step, announce};
use super::{Ordering, address, checker};

macro_rules! announcing {
    ($name:ident $value:ty: $($does:ident $verb:ident($($arg:ident: $t:ty),*) -> $result:ty;)+) => {
        #[doc = concat!("Shuttle's `", stringify!($name), "`.")]
        #[derive(Default, Debug)]
        pub struct $name(checker::sync::atomic::$name);

        #[allow(missing_docs, clippy::missing_errors_doc, reason = "as those of core")]
        impl $name {
            pub fn new(value: $value) -> $name {
                $name(checker::sync::atomic::$name::new(value))
            }
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                // SAFETY: all threads of a model are one OS thread, which is this one.
                #[allow(unsafe_code, reason = "a load that is no operation of the model")]
                let now = unsafe { self.0.raw_load() };
                announce(if now == value { Step::Keep(address(self)) } else { Step::Write(address(self)) });
                self.0.swap(value, order)
            }
            $(pub fn $verb(&self, $($arg: $t),*) -> $result {
                announce(Step::$does(address(self)));
                self.0.$verb($($arg),*)
            })+
        }
    };
}

macro_rules! integer {
    ($name:ident $value:ty) => {
        announcing! { $name $value:
            Read load(order: Ordering) -> $value;
            Write store(value: $value, order: Ordering) -> ();
            Write fetch_add(value: $value, order: Ordering) -> $value;
            Write fetch_sub(value: $value, order: Ordering) -> $value;
            Write fetch_max(value: $value, order: Ordering) -> $value;
            Write compare_exchange(from: $value, to: $value, set: Ordering, failed: Ordering) -> Result<$value, $value>;
            Write fetch_update(set: Ordering, fetch: Ordering, to: impl FnMut($value) -> Option<$value>) -> Result<$value, $value>;
        }
    };
}

integer! { AtomicU32 u32 }
integer! { AtomicU64 u64 }
integer! { AtomicUsize usize }
announcing! { AtomicBool bool:
    Read load(order: Ordering) -> bool;
    Write store(value: bool, order: Ordering) -> ();
    Write fetch_or(value: bool, order: Ordering) -> bool;
    Write compare_exchange(from: bool, to: bool, set: Ordering, failed: Ordering) -> Result<bool, bool>;
}
