//! Thousands of streams that are alive at once and end, and whose handles are not reused: no call announces that they ended.

use super::{Door, GIB, OK, When, alone, bind, function, last, program, read, stream, write};
use std::ffi::c_int;

const CROWD: usize = 5000;

fn pools(door: Door) -> usize {
    door.stats().matches("\"closed\":").count()
}

fn synchronize(door: Door) {
    assert_eq!(function::<extern "C" fn(u32) -> c_int>("millpond_synchronize")(door.0), OK, "{}", last());
}

/// A synchronise forgets all streams but those that a thread remembers, and nothing is lost of what is alive on streams that it forgets.
#[test]
fn a_crowd_of_streams_that_ended_leaves_nothing() {
    alone("crowds::a_crowd_of_streams_that_ended_leaves_nothing", |fake| {
        fake.reset(64 * GIB, 2, When::Earliest);
        let cuda = program();
        bind(&cuda);
        let (door, lasting) = (Door::new(""), stream(&cuda));
        let kept = door.alloc(4096, &lasting);
        write(&cuda, &lasting, kept, 4096, 1);
        let crowd: Vec<_> = (0..CROWD).map(|_| stream(&cuda)).collect();
        for s in &crowd {
            assert_eq!(door.free_on(door.alloc(512, s), s), OK);
        }
        assert!(pools(door) > CROWD, "a pool for each stream");
        // Streams that are alive are forgotten, too: one that is used again gets a new pool.
        synchronize(door);
        for s in &crowd[..100] {
            assert_eq!(door.free_on(door.alloc(512, s), s), OK);
        }
        drop(crowd);
        synchronize(door);
        assert_eq!(door.trim(), OK);
        // The 16 streams that this thread used last, the pool with live memory, and some that have closed and were not looked at yet.
        assert!(pools(door) <= 33, "{} pools", pools(door));
        assert!(door.stat("reserved") <= 33 * (2 << 20), "{} bytes", door.stat("reserved"));
        let events = fake.calls("cuEventCreate") - fake.calls("cuEventDestroy_v2");
        assert!(events <= 300, "{events} events");
        // The stream of the live memory was forgotten meanwhile, and is found again.
        let y = door.alloc(4096, &lasting);
        assert_eq!(door.record_use(kept, &lasting), OK);
        assert_eq!([door.free(kept), door.free_on(y, &lasting)], [OK; 2]);
        assert_eq!(fake.verdict(), None);
        door.destroy();
        drop(lasting);
    });
}

/// A deterministic allocator queries no event, and waits now and then for the end of streams that have ended. It does so in an allocation, which
/// may wait, and in no free or use that names a new stream, neither by a wait nor by repeated queries.
#[test]
fn a_free_that_names_a_new_stream_waits_for_none_that_ended() {
    alone("crowds::a_free_that_names_a_new_stream_waits_for_none_that_ended", |fake| {
        let cuda = program();
        bind(&cuda);
        let (door, lasting) = (Door::new("deterministic=1,wait_ms=1"), stream(&cuda));
        door.declare_permanent(&lasting);
        let asked = || {
            ["cuEventQuery", "cuEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize"]
                .map(|name| fake.calls(name))
        };
        // All are allocated first, because an allocation in between would wait for the ended streams.
        let blocks: Vec<_> = (0..300).map(|_| door.alloc(512, &lasting)).collect();
        let before = asked();
        for (round, &x) in blocks.iter().enumerate() {
            let s = stream(&cuda);
            if round % 2 == 0 {
                assert_eq!(door.record_use(x, &s), OK);
            }
            assert_eq!(door.free_on(x, &s), OK);
            assert_eq!(asked(), before, "round {round}: a free waits for nothing");
        }
        let x = door.alloc(512, &lasting);
        assert_ne!(asked(), before, "the allocation does not look at 300 streams that ended");
        assert_eq!(door.free(x), OK);
        door.destroy();
        assert_eq!(fake.calls("cuEventCreate"), fake.calls("cuEventDestroy_v2"), "events are left");
        assert_eq!(fake.verdict(), None);
    });
}

/// Memory that stays alive, such as weights, and a new stream of the program's for each request that uses it; no call announces their ends. Later
/// streams get their handles, which shows that their uses end with their work; what is pending is waited for at the free.
#[test]
fn users_of_memory_that_stays() {
    alone("crowds::users_of_memory_that_stays", |fake| {
        fake.reset(64 * GIB, 2, When::Earliest);
        let cuda = program();
        bind(&cuda);
        let (door, home) = (Door::new(""), stream(&cuda));
        let weights = door.alloc(4096, &home);
        write(&cuda, &home, weights, 4096, 1);
        synchronize(door);
        let mut events = Vec::new();
        for round in 0..CROWD {
            let s = stream(&cuda);
            assert_eq!(door.free_on(door.alloc(512, &s), &s), OK);
            assert_eq!(door.record_use(weights, &s), OK);
            read(&cuda, &s, weights, 4096);
            drop(s);
            if round % 100 == 99 {
                synchronize(door);
                events.push(fake.calls("cuEventCreate") - fake.calls("cuEventDestroy_v2"));
            }
        }
        // The free comes after the last of them too, and what is handed out then is written at once.
        assert_eq!(door.free(weights), OK);
        let again = door.alloc(4096, &home);
        write(&cuda, &home, again, 4096, 2);
        assert_eq!(fake.verdict(), None);
        assert!(events.iter().all(|&n| n <= 300), "{events:?} events");
        assert!(pools(door) <= 33, "{} pools", pools(door));
        assert_eq!(door.free_on(again, &home), OK);
        door.destroy();
        drop(home);
    });
}
