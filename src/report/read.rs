//! Reading reports and options as serde values, in any format. A missing field has its default, an unknown one
//! is ignored, and a value that does not fit is refused with the name of its field:
//! `pools: counters: hits: invalid type: string "x", expected u64`.
//!
//! A derived reader would not name the field of a wrong value. It does not know what the fields mean.

use serde::de::Error;

/// `Deserialize` for a struct with a default. Every field must be listed, or it does not compile; those behind `but` keep their
/// default. A field may have another name outside: `wait as "bounded_wait"`.
macro_rules! read_fields {
    ($name:ident { $($field:ident $(as $key:literal)?),* $(,)? } $(but $($rest:ident),*)?) => {
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                struct Fields;
                impl<'de> serde::de::Visitor<'de> for Fields {
                    type Value = $name;
                    fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                        f.write_str(concat!("a struct ", stringify!($name)))
                    }
                    fn visit_map<M: serde::de::MapAccess<'de>>(self, mut map: M) -> Result<$name, M::Error> {
                        let mut all = $name::default();
                        while let Some(key) = map.next_key::<String>()? {
                            match key.as_str() {
                                $(key if key == $crate::report::read::read_fields!(@key $field $($key)?) => {
                                    all.$field = map.next_value().map_err(|e| $crate::report::read::of_field(key, &e))?;
                                })*
                                _ => drop(map.next_value::<serde::de::IgnoredAny>()?),
                            }
                        }
                        Ok(all)
                    }
                    fn visit_seq<S: serde::de::SeqAccess<'de>>(self, mut seq: S) -> Result<$name, S::Error> {
                        let mut all = $name::default();
                        $(
                            let key = $crate::report::read::read_fields!(@key $field $($key)?);
                            let value = seq.next_element().map_err(|e| $crate::report::read::of_field(key, &e))?;
                            all.$field = value.ok_or_else(|| serde::de::Error::missing_field(key))?;
                        )*
                        let $name { $($field: _,)* $($($rest: _),*)? } = &all;
                        Ok(all)
                    }
                }
                const KEYS: &[&str] = &[$($crate::report::read::read_fields!(@key $field $($key)?)),*];
                from.deserialize_struct(stringify!($name), KEYS, Fields)
            }
        }
    };
    (@key $field:ident) => { stringify!($field) };
    (@key $field:ident $key:literal) => { $key };
}
pub(crate) use read_fields;

/// What is wrong with a field's value, after the field's name.
pub(crate) fn of_field<E: Error>(field: &str, wrong: &E) -> E {
    E::custom(format_args!("{field}: {wrong}"))
}

use super::{
    Counters, GroupReport, Histogram, Ladder, MapRange, MapSegment, MemberReport, MemoryMap, PhysicalReport,
    PinnedReport, PoolReport, Report, Rung,
};

read_fields!(Counters {
    allocations,
    frees,
    hits,
    misses,
    migrations_in,
    migrations_out,
    waits_inserted,
    host_waits,
    splits,
    merges,
    in_flight_frees,
    bytes_served,
});
read_fields!(PoolReport {
    stream,
    name,
    closed,
    reserved,
    allocated,
    requested,
    cached,
    in_flight,
    held_back,
    allocated_peak,
    reserved_peak,
    live,
    free_chunks,
    largest_free,
    in_flight_ranges,
    oldest_in_flight,
    counters,
    sizes,
});
read_fields!(Histogram { counts });
read_fields!(Rung { tried, served });
read_fields!(Ladder { poll, migrate, grow, migrate_with_wait, move_handles, trim, wait, callback });
read_fields!(Report {
    device,
    capacity,
    limit,
    policy,
    reserved,
    reserved_peak,
    segments,
    segments_created,
    segments_released,
    moving,
    growths,
    releases,
    sparse,
    sparse_bytes,
    sparse_live,
    largest_request,
    allocated_peak,
    allocated_peak_at_most,
    total,
    pools,
    ladder,
    physical,
    pinned,
    driver_calls,
    events_lost,
    deferred_errors,
    soft_limit,
    group,
    pinned_host,
});
read_fields!(PinnedReport {
    limit,
    limit_share,
    segments,
    segments_created,
    segments_released,
    growth_time,
    registered,
});
read_fields!(GroupReport { hard, soft, reserved, reserved_peak, members });
read_fields!(MemberReport { device, limit, reserved, allocated });
read_fields!(PhysicalReport {
    handles,
    handle_bytes,
    handles_created,
    handles_released,
    spare_handles,
    spare_bytes,
    moves,
    moves_in_use,
    mappings,
    former_places,
    former_bytes,
    windows,
    window_bytes,
    reserved_addresses,
    holes,
    hole_bytes,
    largest_hole,
});
read_fields!(MapRange { offset, bytes, state, stream });
read_fields!(MapSegment { id, addr, bytes, window, small, stream, ranges });
read_fields!(MemoryMap { segments });
