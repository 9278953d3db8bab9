//! Figures and timelines, in the simulated device's virtual time.

use crate::{clean, late, on, words};
use millpond::units::{GIB, MIB};
use millpond_feed::{Bottleneck, FeedStats, Feeder, Filled};
use millpond_sim::{Launch, Sim};
use std::time::Duration;

/// Feeds batches of so many bytes whose source, filling and computing take so many microseconds of virtual time.
fn fed(bytes: u64, source: u64, fill: u64, compute: u64) -> (FeedStats, String) {
    let (sim, gpu) = on(Sim::new(16 * GIB).contents(false));
    let work = gpu.stream().unwrap();
    let pass = |sim: &Sim, micros: u64| sim.idle_until(sim.host_time() + Duration::from_micros(micros));
    let (clock, device) = (sim.clone(), sim.clone());
    let batches = (0..200).map(move |_| {
        pass(&device, source);
        let device = device.clone();
        Filled::<(u8,)>::new(((bytes as usize).into(),), move |_| {
            pass(&device, fill);
            Ok(())
        })
    });
    let feeder = Feeder::builder(&gpu)
        .fillers(0)
        .depth(2)
        .timeline(50)
        .clock(move || clock.host_time())
        .start(batches)
        .unwrap();
    for batch in feeder.on(&work) {
        let batch = batch.unwrap();
        let view = batch.views().0;
        let step = Launch::new("train").reads(view.address(), view.size_bytes()).takes(compute * 1000);
        sim.launch(work.native(), step).unwrap();
    }
    let found = (feeder.stats(), feeder.timeline());
    drop((feeder, work, gpu));
    clean(&sim);
    found
}

#[test]
fn the_bottleneck_is_named() {
    // 16 MiB take 302 microseconds over the bus.
    let cases = [
        ((MIB, 500, 50, 100), Bottleneck::Source),
        ((MIB, 50, 500, 100), Bottleneck::Fill),
        ((16 * MIB, 10, 10, 50), Bottleneck::Copy),
        ((MIB, 10, 10, 500), Bottleneck::Compute),
    ];
    for ((bytes, source, fill, compute), expected) in cases {
        let (stats, _) = fed(bytes, source, fill, compute);
        assert_eq!(stats.bottleneck(), expected, "{stats}");
        assert_eq!((stats.batches, stats.bytes, stats.errors), (200, 200 * bytes, 0));
        // What the source and the filling took is known to the microsecond.
        assert_eq!(stats.source, Duration::from_micros(200 * source));
        assert_eq!(stats.fill, Duration::from_micros(200 * fill));
        let text = stats.to_string();
        assert!(text.starts_with("200 batches, ") && text.ends_with(&expected.to_string()), "{text}");
    }
    assert_eq!(FeedStats::default().bottleneck(), Bottleneck::Unknown);
}

/// The timeline is bounded, of Chrome's form, and empty unless it is asked for.
#[test]
fn s15_a_timeline_to_look_at() {
    let (_, json) = fed(MIB, 7, 5, 100);
    let parsed: serde_json::Value = serde_json::from_str(&json).unwrap();
    let events = parsed["traceEvents"].as_array().unwrap();
    let spans: Vec<_> = events.iter().filter(|e| e["ph"] == "X").collect();
    assert_eq!(spans.len(), 50, "as many as were asked for");
    for span in &spans {
        assert!(span["ts"].is_f64() && span["dur"].is_f64() && span["name"].is_string(), "{span}");
    }
    assert!(spans.iter().any(|s| s["name"] == "fill, batch 199" && s["dur"] == 5.0), "{json}");
    // Each row has a name, and no two spans of it overlap.
    let named = |row: &serde_json::Value| {
        events.iter().any(|e| e["name"] == "thread_name" && e["tid"] == *row && e["args"]["name"].is_string())
    };
    for (i, span) in spans.iter().enumerate() {
        assert!(named(&span["tid"]), "{span}");
        let end = |s: &serde_json::Value| s["ts"].as_f64().unwrap() + s["dur"].as_f64().unwrap();
        let overlaps = |other: &&&serde_json::Value| {
            other["tid"] == span["tid"]
                && other["ts"].as_f64().unwrap() + 0.0005 < end(span)
                && span["ts"].as_f64().unwrap() + 0.0005 < end(other)
        };
        assert!(!spans[i + 1..].iter().any(|s| overlaps(&s)), "{span}");
    }

    let (sim, gpu) = late();
    let work = gpu.stream().unwrap();
    let feeder = Feeder::builder(&gpu).start((0..5).map(|i| words(8, i))).unwrap();
    assert_eq!(feeder.on(&work).count(), 5);
    assert!(!feeder.timeline().contains("\"X\""));
    drop((feeder, work, gpu));
    clean(&sim);
}
