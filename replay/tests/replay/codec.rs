//! The two written forms of a program: what is written is read back equal, what is garbage is refused with a place.

use millpond::trace::{Access, BinaryReason, BlockNo, EventNo, Op, Program, Step, StreamNo, ThreadNo};
use millpond_replay::hostile_programs;
use proptest::prelude::*;

/// Any operation at all, sensible or not: the forms must carry them all.
fn op() -> impl Strategy<Value = Op> {
    let block = || prop_oneof![(0..4u32), any::<u32>()].prop_map(BlockNo);
    let stream = || prop_oneof![(0..4u16), any::<u16>()].prop_map(StreamNo);
    let event = || any::<u16>().prop_map(EventNo);
    let bytes =
        || prop_oneof![Just(0), Just(u64::MAX), any::<u64>(), (0..44u32).prop_map(|k| 1 << k), 0..5000u64];
    let access = prop_oneof![Just(Access::Read), Just(Access::Write)];
    prop_oneof![
        (block(), bytes(), proptest::option::of(bytes()), stream())
            .prop_map(|(block, bytes, align, stream)| Op::Alloc { block, bytes, align, stream }),
        (block(), bytes()).prop_map(|(block, bytes)| Op::AllocPinned { block, bytes }),
        block().prop_map(|block| Op::Free { block }),
        (block(), stream()).prop_map(|(block, stream)| Op::FreeOn { block, stream }),
        block().prop_map(|block| Op::FreeUnknown { block }),
        (block(), stream(), access, any::<bool>()).prop_map(|(block, stream, access, recorded)| Op::Use {
            block,
            stream,
            access,
            recorded
        }),
        (block(), stream()).prop_map(|(block, stream)| Op::RecordUse { block, stream }),
        (block(), event()).prop_map(|(block, event)| Op::RecordUseUntil { block, event }),
        (block(), stream()).prop_map(|(block, stream)| Op::ShareWith { block, stream }),
        (block(), block(), bytes(), stream()).prop_map(|(to, from, bytes, stream)| Op::Copy {
            to,
            from,
            bytes,
            stream
        }),
        (event(), stream()).prop_map(|(event, stream)| Op::Record { event, stream }),
        (event(), stream()).prop_map(|(event, stream)| Op::Wait { event, stream }),
        (stream(), stream()).prop_map(|(stream, on)| Op::WaitStream { stream, on }),
        stream().prop_map(|stream| Op::SyncStream { stream }),
        event().prop_map(|event| Op::SyncEvent { event }),
        Just(Op::SyncDevice),
        event().prop_map(|event| Op::Query { event }),
        stream().prop_map(|stream| Op::OpenStream { stream }),
        stream().prop_map(|stream| Op::CloseStream { stream }),
        proptest::option::of(stream()).prop_map(|stream| Op::Trim { stream }),
        proptest::option::of(bytes()).prop_map(|bytes| Op::SetLimit { bytes }),
        (stream(), any::<u32>()).prop_map(|(stream, steps)| Op::Advance { stream, steps }),
        Just(Op::Tick),
        any::<u32>().prop_map(|times| Op::NotReady { times }),
    ]
}

fn any_program() -> impl Strategy<Value = Program> {
    let thread = prop_oneof![3 => Just(0u16), 1 => any::<u16>()].prop_map(ThreadNo);
    let steps = proptest::collection::vec((thread, op()).prop_map(|(thread, op)| Step { thread, op }), 0..40);
    (any::<String>(), any::<u16>(), steps)
        .prop_map(|(name, streams, steps)| Program::new(name, streams).with_steps(steps))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn text_reads_back_equal(program in any_program()) {
        let text = program.to_string();
        prop_assert_eq!(text.parse::<Program>().unwrap(), program, "{}", text);
    }

    #[test]
    fn binary_reads_back_equal(program in any_program()) {
        let bytes = program.to_binary();
        prop_assert_eq!(Program::from_binary(&bytes).unwrap(), program);
    }

    /// Every proper beginning of a binary program is refused: no cut is mistaken for a shorter program.
    #[test]
    fn no_beginning_of_a_binary_program_is_one(program in any_program(), cut in any::<prop::sample::Index>()) {
        let bytes = program.to_binary();
        prop_assert!(Program::from_binary(&bytes[..cut.index(bytes.len())]).is_err());
    }

    /// One damaged byte gives an error or another program, never a panic; and what is accepted has one binary form,
    /// but for overlong numbers.
    #[test]
    fn damaged_binary_never_panics(program in any_program(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut bytes = program.to_binary();
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Ok(read) = Program::from_binary(&bytes) {
            prop_assert_eq!(Program::from_binary(&read.to_binary()).unwrap(), read);
        }
    }

    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(Program::from_binary(&bytes).is_err() || bytes.starts_with(b"MLPD"));
        let text = String::from_utf8_lossy(&bytes);
        prop_assert!(text.parse::<Program>().is_err());
        let mut headed = b"MLPD\x01".to_vec();
        headed.extend(&bytes);
        if let Ok(read) = Program::from_binary(&headed) {
            prop_assert_eq!(Program::from_binary(&read.to_binary()).unwrap(), read);
        }
        prop_assert!(millpond_replay::from_fuzz(&bytes).is_well_formed());
        prop_assert!(millpond_replay::from_fuzz_hostile(&bytes).is_well_formed());
    }

    /// Lines of the right words in the wrong places.
    #[test]
    fn shuffled_text_never_panics(words in proptest::collection::vec(
        prop_oneof![Just("alloc"), Just("b0"), Just("s0"), Just("on"), Just("e0"), Just("free"), Just("\n"), Just("t1:"),
                    Just("wait"), Just("for"), Just("64KiB"), Just("#"), Just("name"), Just("\"\\u{"), Just("é")], 0..60)) {
        let text = format!("millpond trace 1\nstreams 1\n{}", words.join(" "));
        match text.parse::<Program>() {
            Ok(p) => prop_assert_eq!(p.to_string().parse::<Program>().unwrap(), p),
            Err(e) => prop_assert!(e.line as usize <= text.lines().count() + 1 && e.column >= 1),
        }
    }

    #[test]
    fn normalising_is_idempotent_and_makes_well_formed(program in any_program()) {
        let once = program.normalise();
        prop_assert_eq!(once.check(), Ok(()));
        prop_assert_eq!(once.normalise(), once);
    }

    #[test]
    fn normalising_a_well_formed_program_keeps_its_steps(program in hostile_programs(3, 0..60)) {
        prop_assert_eq!(program.normalise().steps.len(), program.steps.len());
    }
}

fn binary_error(bytes: &[u8]) -> (usize, BinaryReason) {
    let e = Program::from_binary(bytes).unwrap_err();
    assert!(e.to_string().starts_with(&format!("byte {}: ", e.offset)), "{e}");
    (e.offset, e.reason)
}

#[test]
fn binary_errors_name_the_byte() {
    use BinaryReason as R;
    assert_eq!(binary_error(b""), (0, R::NoMagic));
    assert_eq!(binary_error(b"\x1f\x8b"), (0, R::NoMagic));
    assert_eq!(binary_error(b"MLPD"), (4, R::Truncated));
    assert_eq!(binary_error(b"MLPD\x07"), (4, R::Version(7)));
    assert_eq!(binary_error(b"MLPD\x01\x05ab"), (5, R::TooLong { declared: 5, left: 2 }));
    assert_eq!(binary_error(b"MLPD\x01\x01\xff"), (6, R::NameNotText));
    assert_eq!(binary_error(b"MLPD\x01\x00\xff\xff\x7f"), (6, R::NumberTooLarge { most: 65535 }));
    // A count of 2^63 steps reserves nothing.
    let huge = b"MLPD\x01\x00\x01\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01";
    assert_eq!(binary_error(huge), (7, R::TooLong { declared: 1 << 63, left: 0 }));
    let above = b"MLPD\x01\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f";
    assert_eq!(binary_error(above), (7, R::NumberTooLarge { most: u64::MAX }));
    let endless = b"MLPD\x01\x00\x01\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00";
    assert_eq!(binary_error(endless), (7, R::NumberTooLarge { most: u64::MAX }));
    assert_eq!(binary_error(b"MLPD\x01\x00\x01\x01\x1f"), (8, R::UnknownTag(0x1f)));
    assert_eq!(binary_error(b"MLPD\x01\x00\x01\x01\x34"), (8, R::UnknownTag(0x34)));
    assert_eq!(binary_error(b"MLPD\x01\x00\x01\x01\x14\x14"), (9, R::Trailing { left: 1 }));
}

/// The form is compact: long programs are corpora.
#[test]
fn binary_takes_about_six_bytes_a_step() {
    let program = millpond_replay::from_fuzz(
        &(0..60_000u32).map(|k| (k.wrapping_mul(2_654_435_761) >> 24) as u8).collect::<Vec<_>>(),
    );
    assert!(program.steps.len() > 5_000);
    let per_step = program.to_binary().len() as f64 / program.steps.len() as f64;
    assert!(per_step < 6.0, "{per_step}");
    assert!(program.to_binary().len() * 2 < program.to_string().len());
}
