use super::*;

fn check_against_chrono(converter: &mut ZoneConverter, zone: Tz, local_us: i64) {
    let local = DateTime::from_timestamp_micros(local_us).unwrap().naive_utc();
    let got = converter.convert(local_us);
    match zone.from_local_datetime(&local) {
        chrono::MappedLocalTime::Single(t) => assert_eq!(got, LocalTime::Utc(t.timestamp_micros()), "{zone} {local}"),
        chrono::MappedLocalTime::Ambiguous(a, b) => {
            let (a, b) = (a.timestamp_micros(), b.timestamp_micros());
            assert_eq!(got, LocalTime::Ambiguous { earlier: a.min(b), later: a.max(b) }, "{zone} {local}");
        }
        chrono::MappedLocalTime::None => {
            let LocalTime::Nonexistent { shifted } = got else { panic!("{zone} {local} does not exist but is {got:?}") };
            // Shifting by the gap lands on the instant that the offset before the gap gives.
            let LocalTime::Utc(instant) = converter.convert(shifted) else { panic!("{zone} {local} shifts into another change") };
            let before = zone.offset_from_utc_datetime(&DateTime::from_timestamp_micros(instant).unwrap().naive_utc());
            assert!(shifted > local_us && before.fix().local_minus_utc() as i64 * 1_000_000 == shifted - instant, "{zone} {local}");
        }
    }
}

/// A small generator, so that the values are the same in every run.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 17
}

#[test]
fn agrees_with_chrono_around_every_change_from_1900_to_2100() {
    let names = [
        "Europe/Berlin",
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "Africa/Casablanca",
        "Europe/Dublin",
        "Asia/Kathmandu",
        "America/New_York",
        "Europe/Amsterdam",
        "Africa/Monrovia",
        "America/St_Johns",
        "Antarctica/Troll",
        "Asia/Tehran",
    ];
    let mut state = 7;
    for name in names {
        let zone: Tz = name.parse().unwrap();
        let mut converter = ZoneConverter::new(&Zone::parse(name).unwrap());
        let offset_at =
            |second: i64| zone.offset_from_utc_datetime(&DateTime::from_timestamp(second, 0).unwrap().naive_utc()).fix().local_minus_utc();
        let (first, last) = (-2_208_988_800_i64, 4_102_444_800_i64);
        let mut day = first;
        while day < last {
            let (mut low, mut high) = (day, day + 86_400);
            if offset_at(low) != offset_at(high) {
                while high - low > 1 {
                    let middle = low + (high - low) / 2;
                    if offset_at(middle) == offset_at(low) { low = middle } else { high = middle }
                }
                for offset in [offset_at(low), offset_at(high)] {
                    let change = (high + i64::from(offset)) * 1_000_000;
                    for near in [-1, 0, 1, -1_000_000, 1_000_000, -3_600_000_000, 3_600_000_000] {
                        check_against_chrono(&mut converter, zone, change + near);
                    }
                    for _ in 0..40 {
                        let away = (next(&mut state) % (6 * 3_600_000_000)) as i64 - 3 * 3_600_000_000;
                        check_against_chrono(&mut converter, zone, change + away);
                    }
                }
            }
            day += 86_400;
        }
        for _ in 0..2_000 {
            let somewhere = first + (next(&mut state) % (last - first) as u64) as i64;
            check_against_chrono(&mut converter, zone, somewhere * 1_000_000 + (next(&mut state) % 1_000_000) as i64);
        }
    }
}

/// What a row group's bounds are made from: every instant of a local time between two others must lie within.
#[test]
fn bounds_by_offsets_nearby_hold_every_instant_between() {
    let mut state = 5u64;
    for name in ["Europe/Berlin", "Pacific/Apia", "Australia/Lord_Howe", "America/St_Johns", "Africa/Casablanca", "Asia/Manila", "+05:45"] {
        let zone = Zone::parse(name).unwrap();
        let mut converter = ZoneConverter::new(&zone);
        for _ in 0..3_000 {
            // Between 1900 and 2100, from seconds to years long; every tenth one ends at the turn of a year or of a half.
            let low = (next(&mut state) % 6_311_433_600) as i64 * 1_000_000 - 2_208_988_800_000_000;
            let length = 1i64 << (20 + next(&mut state) % 27);
            let high = low + (next(&mut state) % length as u64) as i64;
            let (earliest, latest) = (low - zone.offsets_near_us(low).1, high - zone.offsets_near_us(high).0);
            for _ in 0..20 {
                let local = low + (next(&mut state) % (high - low + 1) as u64) as i64;
                let instants = match converter.convert(local) {
                    LocalTime::Utc(us) => vec![us],
                    LocalTime::Ambiguous { earlier, later } => vec![earlier, later],
                    LocalTime::Nonexistent { shifted } => match converter.convert(shifted) {
                        LocalTime::Utc(us) => vec![us],
                        other => panic!("{name} {local}: shifted to {other:?}"),
                    },
                };
                assert!(instants.iter().all(|us| earliest <= *us && *us <= latest), "{name}: {local} of {low}..{high} is {instants:?}");
            }
        }
    }
    assert_eq!(Zone::parse("Europe/Berlin").unwrap().offsets_near_us(1_704_067_200_000_000), (3_600_000_000, 3_600_000_000));
    assert_eq!(Zone::parse("-03:30").unwrap().offsets_near_us(0), (-12_600_000_000, -12_600_000_000));
    let (west, east) = Zone::parse("Pacific/Apia").unwrap().offsets_near_us(1_325_289_600_000_000);
    assert_eq!(east - west, 86_400_000_000, "the day that Samoa skipped");
    assert!(Zone::parse("Etc/UTC").unwrap().is_utc() && !Zone::parse("Europe/London").unwrap().is_utc());
}

#[test]
fn fixed_offsets_and_names() {
    for (text, seconds) in [("UTC", 0), ("Z", 0), ("+10:00", 36_000), ("-0330", -12_600), ("+05", 18_000)] {
        let mut converter = ZoneConverter::new(&Zone::parse(text).unwrap());
        assert_eq!(converter.convert(-1), LocalTime::Utc(-1 - seconds * 1_000_000), "{text}");
    }
    // Five hours west, as the database has it.
    assert_eq!(ZoneConverter::new(&Zone::parse("Etc/GMT+5").unwrap()).convert(0), LocalTime::Utc(18_000_000_000));
    for (text, meant) in [("europe/berlin", "Europe/Berlin"), ("Europe/Berln", "Europe/Berlin"), ("Lord Howe", "Lord_Howe")] {
        let error = Zone::parse(text).unwrap_err();
        assert_eq!(error.reason, Reason::UnknownTimeZone);
        assert!(error.hint.as_ref().unwrap().contains(meant), "{error:?}");
    }
    for text in ["", "+24:00", "+1:00", "+10:60", "++1:0", "CET-1CEST", "+١٠"] {
        assert!(Zone::parse(text).is_err(), "{text}");
    }
}

#[test]
fn times_beyond_the_calendar_do_not_panic() {
    for name in ["Europe/Berlin", "+10:00", "Pacific/Apia"] {
        let mut converter = ZoneConverter::new(&Zone::parse(name).unwrap());
        for local_us in [i64::MIN, i64::MIN + 1, -9_000_000_000_000_000_000, 9_000_000_000_000_000_000, i64::MAX] {
            assert!(matches!(converter.convert(local_us), LocalTime::Utc(_)), "{name} {local_us}");
        }
    }
}
