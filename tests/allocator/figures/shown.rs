//! What a report shows is what it holds: its text is parsed, and each number in it compared with the field; its JSON is the object
//! that the fields make. A new field does not compile here until the test says where it is shown.

use millpond::report::{Counters, Histogram, Ladder, PhysicalReport, PinnedReport, PoolReport, Report, Rung};
use serde_json::{Value, json};

fn rung_json(r: &Rung) -> Value {
    let Rung { tried, served } = *r;
    json!({"tried": tried, "served": served})
}

fn counters_json(c: &Counters) -> Value {
    let Counters {
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
    } = *c;
    json!({
        "allocations": allocations, "frees": frees, "hits": hits, "misses": misses, "migrations_in": migrations_in,
        "migrations_out": migrations_out, "waits_inserted": waits_inserted, "host_waits": host_waits, "splits": splits,
        "merges": merges, "in_flight_frees": in_flight_frees, "bytes_served": bytes_served,
    })
}

fn pool_json(p: &PoolReport) -> Value {
    let PoolReport {
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
        sizes: Histogram { counts },
    } = p;
    json!({
        "stream": stream.map(|s| s.0), "name": name, "closed": closed, "reserved": reserved, "allocated": allocated, "requested": requested,
        "cached": cached, "in_flight": in_flight, "held_back": held_back, "allocated_peak": allocated_peak,
        "reserved_peak": reserved_peak, "live": live, "free_chunks": free_chunks, "largest_free": largest_free,
        "in_flight_ranges": in_flight_ranges, "oldest_in_flight": oldest_in_flight,
        "counters": counters_json(counters), "sizes": {"counts": counts},
        "fragmentation": p.fragmentation(), "hit_rate": p.hit_rate(),
    })
}

fn physical_json(p: &PhysicalReport) -> Value {
    let PhysicalReport {
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
    } = *p;
    json!({
        "handles": handles, "handle_bytes": handle_bytes, "handles_created": handles_created, "handles_released": handles_released,
        "spare_handles": spare_handles, "spare_bytes": spare_bytes, "moves": moves, "moves_in_use": moves_in_use, "mappings": mappings,
        "former_places": former_places, "former_bytes": former_bytes, "windows": windows, "window_bytes": window_bytes,
        "reserved_addresses": reserved_addresses, "holes": holes, "hole_bytes": hole_bytes, "largest_hole": largest_hole,
    })
}

fn pinned_json(p: &PinnedReport) -> Value {
    let PinnedReport {
        limit,
        limit_share,
        segments,
        segments_created,
        segments_released,
        growth_time,
        registered,
    } = p;
    json!({
        "limit": limit, "limit_share": limit_share, "segments": segments, "segments_created": segments_created,
        "segments_released": segments_released, "registered": registered,
        "growth_time": {"secs": growth_time.as_secs(), "nanos": growth_time.subsec_nanos()},
    })
}

fn json_of(r: &Report) -> Value {
    let Report {
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
        pinned_host,
        driver_calls,
        events_lost,
        deferred_errors,
        soft_limit,
        group,
    } = r;
    let Ladder { poll, migrate, grow, migrate_with_wait, move_handles, trim, wait, callback } = ladder;
    let bounds = r.reserved_over_allocated_bounds();
    let known = allocated_peak == allocated_peak_at_most;
    let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
    let calls: serde_json::Map<String, Value> =
        driver_calls.iter().map(|(name, n)| (name.to_string(), json!(n))).collect();
    json!({
        "device": device.0, "capacity": capacity, "limit": limit, "policy": policy, "reserved": reserved,
        "reserved_peak": reserved_peak, "segments": segments, "moving": moving, "growths": growths, "releases": releases,
        "allocated_peak": allocated_peak, "allocated_peak_at_most": allocated_peak_at_most,
        "total": pool_json(total), "pools": pools.iter().map(pool_json).collect::<Vec<_>>(),
        "ladder": {
            "poll": rung_json(poll), "migrate": rung_json(migrate), "grow": rung_json(grow),
            "migrate_with_wait": rung_json(migrate_with_wait), "move_handles": rung_json(move_handles),
            "trim": rung_json(trim), "wait": rung_json(wait),
            "callback": rung_json(callback),
        },
        "segments_created": segments_created, "segments_released": segments_released, "sparse": sparse, "sparse_bytes": sparse_bytes,
        "sparse_live": sparse_live, "largest_request": largest_request, "physical": physical.as_ref().map(physical_json),
        "slack": reserved - total.allocated, "slack_at_peak": known.then(|| reserved_peak - allocated_peak),
        "allocated_over_reserved": share(total.allocated, *reserved),
        "allocated_over_reserved_at_peak": known.then(|| share(*allocated_peak, *reserved_peak)).flatten(),
        "pinned": pinned.as_ref().map(pool_json), "pinned_host": pinned_host.as_ref().map(pinned_json), "driver_calls": calls, "events_lost": events_lost,
        "soft_limit": soft_limit, "group": group,
        "deferred_errors": deferred_errors, "reserved_over_allocated": r.reserved_over_allocated(),
        "reserved_over_allocated_at_least": bounds.map(|b| b.0), "reserved_over_allocated_at_most": bounds.map(|b| b.1),
    })
}

/// What one in the last digit is worth.
fn last_digit(shown: &str) -> f64 {
    shown.split_once('.').map_or("", |(_, behind)| behind).chars().fold(1.0, |worth, _| worth / 10.0)
}

/// Whether a number, shown with so many digits, is this one.
fn is_rounded(shown: &str, value: f64) -> bool {
    let half = 0.5 * last_digit(shown);
    shown.parse::<f64>().is_ok_and(|said| (said - value).abs() <= half * (1.0 + 1e-6))
}

/// Whether a size, `1.50 GiB`, is these bytes; digits that are not shown may be cut off.
fn is_size(shown: &str, bytes: u64) -> bool {
    let Some((number, unit)) = shown.split_once(' ') else { return false };
    let Some(power) = ["B", "KiB", "MiB", "GiB", "TiB"].iter().position(|u| *u == unit) else { return false };
    if power == 0 {
        return number.parse() == Ok(bytes);
    }
    let scaled = bytes as f64 / (1_u64 << (10 * power)) as f64;
    let last = last_digit(number);
    number.parse::<f64>().is_ok_and(|said| (said - scaled).abs() < last * (1.0 + 1e-6))
}

/// What stands behind `label` in a text, up to the next run of spaces or the line's end.
fn behind<'a>(text: &'a str, label: &str) -> &'a str {
    let at = text.find(label).unwrap_or_else(|| panic!("no {label:?} in {text}")) + label.len();
    let rest = text[at..].trim_start_matches(' ');
    let end = rest.find("   ").into_iter().chain(rest.find('\n')).min().unwrap_or(rest.len());
    &rest[..end]
}

/// The number in front of a noun, which is in the singular if the number is 1: `label` has it in the plural, behind a space, and may go on.
fn before_noun(text: &str, label: &str) -> u64 {
    let (noun, rest) = label[1..].split_once("s ").map_or((&label[1..label.len() - 1], ""), |(a, b)| (a, b));
    let rest = if rest.is_empty() { String::new() } else { format!(" {rest}") };
    let singular = format!(" 1 {noun}{rest}");
    if !text.contains(label) && text.contains(&singular) {
        return 1;
    }
    let n = before(text, label);
    assert_ne!(n, 1, "{label:?} in {text}");
    n
}

/// The number before `label`.
fn before(text: &str, label: &str) -> u64 {
    let at = text.find(label).unwrap_or_else(|| panic!("no {label:?} in {text}"));
    text[..at]
        .rsplit(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("no number before {label:?}"))
}

fn line<'a>(text: &'a str, begins: &str) -> Option<&'a str> {
    text.lines().find(|l| l.starts_with(begins))
}

/// A row of the table; `peak` says whether the cell is right.
fn row(cells: &[&str], p: &PoolReport, peak: impl Fn(&str) -> bool) {
    let [_, live, cached, in_flight, shown_peak, allocations, hits, migrations, waits, fragmentation] = cells
    else {
        panic!("{} cells: {cells:?}", cells.len())
    };
    let c = &p.counters;
    assert!(is_size(live, p.allocated) && is_size(cached, p.cached), "{cells:?}");
    assert!(is_size(in_flight, p.in_flight) && peak(shown_peak), "{cells:?}");
    assert_eq!(
        [*allocations, *migrations, *waits],
        [c.allocations, c.migrations_in, c.waits_inserted].map(|n| n.to_string())
    );
    match hits.strip_suffix(" %") {
        Some(hits) => assert!(is_rounded(hits, 100.0 * c.hits as f64 / c.allocations as f64), "{cells:?}"),
        None => assert_eq!((*hits, c.allocations), ("-", 0)),
    }
    assert!(is_rounded(fragmentation, p.fragmentation()), "{cells:?}");
}

fn table_says(r: &Report, text: &str) {
    let table: Vec<Vec<&str>> = text
        .lines()
        .skip_while(|l| !l.starts_with("pool "))
        .skip(1)
        .take_while(|l| !l.starts_with("miss ladder"))
        .map(|l| l.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    let several = usize::from(r.pools.len() > 1);
    assert_eq!(table.len(), r.pools.len() + several + usize::from(r.pinned.is_some()), "{text}");
    for (cells, p) in table.iter().zip(&r.pools) {
        let name = match p.name.as_deref() {
            None => p.stream.expect("a pool has one").to_string(),
            Some(name) => format!("the {name} stream"),
        };
        assert_eq!(cells[0], name + if p.closed { " closed" } else { "" });
        row(cells, p, |peak| is_size(peak, p.allocated_peak));
    }
    if several == 1 {
        row(&table[r.pools.len()], &r.total, |peak| match peak.strip_prefix("at most ") {
            None => r.allocated_peak == r.allocated_peak_at_most && is_size(peak, r.allocated_peak),
            Some(most) => {
                r.allocated_peak < r.allocated_peak_at_most && is_size(most, r.allocated_peak_at_most)
            }
        });
    }
    if let Some(p) = &r.pinned {
        assert_eq!((p.stream, r.total.stream), (None, None));
        row(table.last().unwrap(), p, |peak| is_size(peak, p.allocated_peak));
    }
}

fn slack_says(r: &Report, text: &str) {
    let slack = line(text, "slack ").unwrap().trim_start_matches("slack").trim_start();
    let known = r.allocated_peak == r.allocated_peak_at_most;
    let (now, rest) = slack.split_once(" reserved and not allocated (at the peak ").unwrap();
    assert!(is_size(now, r.reserved - r.total.allocated), "{slack}");
    let (peak, rest) = rest.split_once("); allocated over reserved ").unwrap();
    assert!(if known { is_size(peak, r.reserved_peak - r.allocated_peak) } else { peak == "-" }, "{slack}");
    let (share, rest) = rest.split_once(" (at the peak ").unwrap();
    let is_share = |shown: &str, part: u64, whole: u64| match whole {
        0 => shown == "-",
        _ => is_rounded(shown, part as f64 / whole as f64),
    };
    assert!(is_share(share, r.total.allocated, r.reserved), "{slack}");
    let (at_peak, largest) = rest.split_once("); largest request without growth ").unwrap();
    let right = if known { is_share(at_peak, r.allocated_peak, r.reserved_peak) } else { at_peak == "-" };
    assert!(right && is_size(largest, r.largest_request), "{slack}");
    match line(text, "sparse ") {
        None => assert_eq!((r.sparse, r.sparse_bytes, r.sparse_live), (0, 0, 0)),
        Some(l) => {
            let (sparse, rest) = l.trim_start_matches("sparse").trim_start().split_once(" in ").unwrap();
            let live = rest.split_once("allocated, ").unwrap().1.split(':').next().unwrap();
            assert!(is_size(sparse, r.sparse_bytes) && is_size(live, r.sparse_live), "{l}");
            let one = l.contains(" in 1 segment or handle of");
            assert_eq!(if one { 1 } else { before(l, " segments and handles") }, r.sparse);
            assert_eq!(one, r.sparse == 1, "{l}");
        }
    }
}

fn physical_says(r: &Report, text: &str) {
    let lines = (line(text, "handles "), line(text, "addresses "));
    let Some(p) = &r.physical else {
        assert_eq!(lines, (None, None));
        return;
    };
    let (handles, addresses) = (lines.0.unwrap(), lines.1.unwrap());
    let counts = [" created", " released", " spare of", " moves", " of them in use"]
        .map(|l| if l == " moves" { before_noun(handles, l) } else { before(handles, l) });
    assert_eq!(counts, [p.handles_created, p.handles_released, p.spare_handles, p.moves, p.moves_in_use]);
    let first = handles.trim_start_matches("handles").trim_start();
    let (number, rest) = first.split_once(" of ").unwrap();
    assert_eq!(number.parse(), Ok(p.handles), "{handles}");
    assert!(is_size(rest.split(',').next().unwrap(), p.handle_bytes), "{handles}");
    assert!(is_size(handles.split(" spare of ").nth(1).unwrap().split(';').next().unwrap(), p.spare_bytes));
    let counts = [" windows of", " mappings", " holes of"].map(|l| before_noun(addresses, l));
    let former = before(addresses, " of them former places");
    assert_eq!((counts, former), ([p.windows, p.mappings, p.holes], p.former_places), "{addresses}");
    for (label, end, bytes) in [
        (if p.windows == 1 { " window of " } else { " windows of " }, ',', p.window_bytes),
        (" former places of ", ';', p.former_bytes),
        (if p.holes == 1 { " hole of " } else { " holes of " }, ',', p.hole_bytes),
        (" largest hole ", ',', p.largest_hole),
    ] {
        let shown = addresses.split(label).nth(1).unwrap().split(end).next().unwrap();
        assert!(is_size(shown, bytes), "{label}: {addresses}");
    }
    let reserved = addresses.split(", ").nth(1).unwrap().split(" reserved").next().unwrap();
    assert!(is_size(reserved, p.reserved_addresses), "{addresses}");
}

fn text_says(r: &Report) {
    let text = format!("{r:#}");
    let (head, t) = (text.lines().next().unwrap(), &r.total);
    let bounded = |shown: &str| {
        let shown = shown.strip_prefix("at least ").and_then(|s| s.split_once(", at most "));
        shown.is_some_and(|(a, b)| is_size(a, r.allocated_peak) && is_size(b, r.allocated_peak_at_most))
    };
    let (taken, peak) = behind(head, "reserved").split_once(" (peak ").unwrap();
    assert!(is_size(taken, r.reserved) && is_size(peak.trim_end_matches(')'), r.reserved_peak), "{head}");
    let (live, ratio) = (behind(head, "peak allocated"), behind(head, "ratio"));
    if r.allocated_peak == r.allocated_peak_at_most {
        assert!(is_size(live, r.allocated_peak), "{head}");
        let truth = (r.allocated_peak > 0).then(|| r.reserved_peak as f64 / r.allocated_peak as f64);
        assert!(truth.map_or(ratio == "-", |truth| is_rounded(ratio, truth)), "{head}");
    } else {
        // Never a bound as if it were the figure.
        assert!(bounded(live), "{head}");
        let (least, most) = ratio.split_once(" to ").expect("a ratio of bounds is two");
        assert!(is_rounded(least, r.reserved_peak as f64 / r.allocated_peak_at_most as f64), "{head}");
        assert!(is_rounded(most, r.reserved_peak as f64 / r.allocated_peak as f64), "{head}");
    }
    let (limit, capacity) = behind(head, "limit").split_once(" of ").unwrap();
    assert!(
        is_size(capacity, r.capacity) && r.limit.map_or(limit == "none", |n| is_size(limit, n)),
        "{head}"
    );
    assert!(is_size(behind(head, "largest free"), t.largest_free), "{head}");
    assert!(is_size(behind(head, "in flight"), t.in_flight), "{head}");
    let cached = line(&text, "cached ").unwrap().trim_start_matches("cached").trim_start();
    assert!(is_size(cached.split(" kept").next().unwrap(), t.cached));
    assert_eq!(line(&text, "moving").is_some(), r.moving > 0);
    slack_says(r, &text);
    physical_says(r, &text);

    table_says(r, &text);

    let ladder = line(&text, "miss ladder").unwrap();
    for (name, rung) in r.ladder.rungs() {
        let label = format!("   {name} ");
        assert_eq!(behind(ladder, &label), format!("{}/{}", rung.served, rung.tried), "{name}: {ladder}");
    }
    let work = line(&text, "work").unwrap();
    let shown = [" splits", " merges", " growths", " releases", " segments now", " host waits"]
        .map(|l| before_noun(work, l));
    let c = &t.counters;
    assert_eq!(shown, [c.splits, c.merges, r.growths, r.releases, r.segments, c.host_waits]);
    let of_segments = format!("({} created, {} released)", r.segments_created, r.segments_released);
    assert!(work.contains(&of_segments), "{work}");
    let held_back = t.held_back + r.pinned.as_ref().map_or(0, |p| p.held_back);
    match line(&text, "held back") {
        Some(l) => assert!(is_size(
            l.trim_start_matches("held back").split(" until").next().unwrap().trim(),
            held_back
        )),
        None => assert_eq!(held_back, 0),
    }
    match (line(&text, "in flight "), t.oldest_in_flight) {
        (Some(l), Some(markers)) => {
            assert_eq!(
                (before_noun(l, " ranges"), before_noun(l, " markers back")),
                (t.in_flight_ranges, markers)
            );
            let bytes = l.split(", ").nth(1).unwrap().split(';').next().unwrap();
            assert!(is_size(bytes, t.in_flight), "{l}");
        }
        (l, oldest) => assert_eq!((l, oldest), (None, None)),
    }
    let all: u64 = r.driver_calls.values().sum();
    let driver = line(&text, "driver").unwrap_or("driver 0 calls: ");
    assert_eq!(before_noun(driver, " calls"), all);
    let mut shown: Vec<(&str, u64)> = driver
        .split_once(": ")
        .unwrap()
        .1
        .split(", ")
        .filter_map(|call| call.rsplit_once(' ').map(|(name, n)| (name, n.parse().unwrap())))
        .collect();
    shown.sort_unstable();
    let mut calls: Vec<_> =
        r.driver_calls.iter().map(|(name, n)| (&**name, *n)).filter(|(_, n)| *n > 0).collect();
    calls.sort_unstable();
    assert_eq!(shown, calls);
    assert_eq!(line(&text, "events").is_some(), r.events_lost > 0);
    assert_eq!(text.lines().filter(|l| l.starts_with("error")).count(), r.deferred_errors.len());
    let sizes: Vec<u64> = text
        .split_once("sizes of all requests\n")
        .unwrap()
        .1
        .lines()
        .filter_map(|l| l.split_whitespace().filter_map(|w| w.parse().ok()).next_back())
        .collect();
    assert_eq!(sizes.iter().sum::<u64>(), t.sizes.counts.iter().sum::<u64>(), "{text}");
}

/// Panics unless both are the same, key by key; a fraction to its last digit, which reading may cost.
fn same(said: &Value, right: &Value, at: &str) {
    match (said, right) {
        (Value::Object(a), Value::Object(b)) => {
            assert!(a.keys().eq(b.keys()), "{at}: {:?} for {:?}", a.keys(), b.keys());
            a.iter().for_each(|(key, a)| same(a, &b[key], &format!("{at}.{key}")));
        }
        (Value::Array(a), Value::Array(b)) => {
            assert_eq!(a.len(), b.len(), "{at}");
            a.iter().zip(b).for_each(|(a, b)| same(a, b, at));
        }
        (Value::Number(a), Value::Number(b)) if a.is_f64() && b.is_f64() => {
            let [a, b] = [a, b].map(|n| n.as_f64().unwrap());
            assert!((a - b).abs() <= 1e-14 * b.abs(), "{at}: {a} for {b}");
        }
        _ => assert_eq!(said, right, "{at}"),
    }
}

/// Panics unless text and JSON say what the fields say, and the JSON is read back as the same report.
pub(crate) fn check(r: &Report) {
    let said: Value = serde_json::from_str(&r.to_json()).expect("JSON");
    assert_eq!(&serde_json::from_str::<Report>(&r.to_json()).expect("a report"), r);
    assert_eq!(&serde_json::from_value::<Report>(said.clone()).expect("a report"), r);
    same(&said, &json_of(r), "");
    text_says(r);
}
