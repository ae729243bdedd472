//! Text files as the world writes them, through the real command: encodings, headers, delimiters, quotes, numbers.

use crate::variants::Variants;
use serde_json::json;

const TWO_TIMES: [&str; 2] = ["2024-05-01T00:00:00Z", "2024-05-01T00:01:00Z"];

/// `Time,Value` with a time per value, delimited by `delimiter`.
fn csv_of(values: &[&str], delimiter: char) -> String {
    let rows = values.iter().enumerate().map(|(i, value)| format!("2024-05-01T00:{i:02}:00Z{delimiter}{value}\n"));
    format!("Time{delimiter}Value\n{}", rows.collect::<String>())
}

fn numbers(variants: &mut Variants, name: &str, options: &str, values: &[(&str, serde_json::Value)]) {
    let delimiter = if options.contains("';'") { ';' } else { ',' };
    let texts: Vec<&str> = values.iter().map(|(text, _)| *text).collect();
    let rows = values.iter().enumerate().map(|(i, (_, value))| json!([format!("2024-05-01T00:{i:02}:00Z"), value])).collect();
    variants.good(&format!("{name}.csv"), csv_of(&texts, delimiter), options, rows);
}

/// The value in line 2 is no number.
fn no_number(variants: &mut Variants, name: &str, options: &str, value: &str) {
    let delimiter = if options.contains("';'") { ';' } else { ',' };
    let shown = value.trim_matches('"');
    let fields = json!({"reason": "bad_number", "line": 2, "column": "Value", "value": shown, "count": 1});
    variants.bad(&format!("{name}.csv"), csv_of(&[value], delimiter), options, fields);
}

fn utf16(text: &str, big: bool, mark: bool) -> Vec<u8> {
    let mark = mark.then_some(0xFEFF);
    mark.into_iter().chain(text.encode_utf16()).flat_map(|unit| if big { unit.to_be_bytes() } else { unit.to_le_bytes() }).collect()
}

#[test]
fn numbers_of_locales() {
    let mut v = Variants::new();
    let french = "--delimiter ';' --decimal , --thousands '\u{202f}'";
    numbers(
        &mut v,
        "french",
        french,
        &[
            ("1\u{202f}234\u{202f}567,5", json!(1234567.5)),
            ("-12\u{202f}345,25", json!(-12345.25)),
            ("\u{202f}7,5\u{a0}", json!(7.5)),
            ("999", json!(999)),
            ("1,5e3", json!(1500)),
        ],
    );
    numbers(&mut v, "no-break", "--delimiter ';' --decimal , --thousands '\u{a0}'", &[("1\u{a0}234,5", json!(1234.5))]);
    numbers(
        &mut v,
        "norwegian",
        "--delimiter ';' --decimal , --thousands ' '",
        &[("1 234 567,5", json!(1234567.5)), ("-1 000", json!(-1000))],
    );
    numbers(&mut v, "swiss", "--thousands '\u{2019}'", &[("1\u{2019}234\u{2019}567.5", json!(1234567.5))]);
    v.good(
        "swiss-ascii.csv",
        csv_of(&["1'234.5", "-9'876'543"], ','),
        "--thousands \"'\"",
        json!([[TWO_TIMES[0], 1234.5], [TWO_TIMES[1], -9876543]]),
    );
    numbers(&mut v, "indian", "--thousands ,", &[("\"12,34,567.5\"", json!(1234567.5)), ("\"1,00,000\"", json!(100000))]);
    // What is no number in this spelling is never cut to one.
    no_number(&mut v, "minus", "", "\u{2212}5");
    no_number(&mut v, "en-dash", "", "\u{2013}5");
    no_number(&mut v, "full-width", "", "\u{ff11}\u{ff12}");
    no_number(&mut v, "arabic", "", "\u{661}\u{662}");
    no_number(&mut v, "devanagari", "", "\u{967}\u{968}.\u{96b}");
    no_number(&mut v, "soft", "", "1\u{ad}2");
    no_number(&mut v, "superscript", "", "10\u{b2}");
    no_number(&mut v, "percent", "", "12 %");
    no_number(&mut v, "currency", "", "\u{20ac}12");
    no_number(&mut v, "unit", "", "12.5\u{a0}\u{b0}C");
    no_number(&mut v, "groups", "--thousands ,", "\"1,23\"");
    no_number(&mut v, "group-after-decimal", "--thousands ,", "\"1.234,5\"");
    no_number(&mut v, "blank-group", "", "1 234.5");
    no_number(&mut v, "comma", "--delimiter ';'", "1,5");
    no_number(&mut v, "point", "--delimiter ';' --decimal ,", "1.5");
    no_number(&mut v, "overflow", "", "-1e400");
    no_number(&mut v, "brackets", "", "(5)");
    no_number(&mut v, "trailing-minus", "", "5-");
    no_number(&mut v, "nan-ind", "", "-1.#IND");
    no_number(&mut v, "words", "", "NULL");
    v.bad("bad-option.csv", csv_of(&["1"], ','), "--decimal . --thousands .", json!({"reason": "invalid_option", "option": "--thousands"}));
    // A whole number stays exact, also beyond what a double holds; with a fraction it is none.
    let count = "--map ts=Time,value=,count=Value";
    v.good(
        "long.csv",
        csv_of(&["9007199254740993", " -5 ", "7.0"], ','),
        count,
        json!([[TWO_TIMES[0], null, null, 9007199254740993_i64], [TWO_TIMES[1], null, null, -5], ["2024-05-01T00:02:00Z", null, null, 7]]),
    );
    for (name, value, reason) in [("long-half", "7.5", "lossy_conversion"), ("long-far", "9223372036854775808", "number_out_of_range")] {
        v.bad(&format!("{name}.csv"), csv_of(&[value], ','), count, json!({"reason": [reason, "bad_number"], "line": 2, "value": value}));
    }
    v.finish();
}

#[test]
fn encodings() {
    let mut v = Variants::new();
    let text = "Time,Gerät,Wert,Notiz\r\n2024-05-01T00:00:00Z,Zähler-{},1.5,20 °C – ok\r\n2024-05-01T00:01:00Z,Zähler-{},2.5,€ 𝄞\r\n";
    let map = "--map ts=Time,device_id=Gerät,value=Wert,note=Notiz";
    let rows = |device: &str| {
        json!(
            [[format!("Zähler-{device} {}", TWO_TIMES[0]), 1.5, "20 °C – ok"], [format!("Zähler-{device} {}", TWO_TIMES[1]), 2.5, "€ 𝄞"],]
        )
    };
    let named = |device: &str| text.replace("{}", device);
    v.good("le.csv", utf16(&named("le"), false, true), map, rows("le"));
    v.good("be.csv", utf16(&named("be"), true, true), map, rows("be"));
    v.good("le-said.csv", utf16(&named("le-said"), false, false), &format!("{map} --encoding utf-16le"), rows("le-said"));
    v.good("bom.csv", format!("\u{feff}{}", named("bom")), map, rows("bom"));
    // From Excel as "Unicode text": tabs, in a file that is named .txt or .csv.
    v.good("excel.csv", utf16(&named("excel").replace(',', "\t"), false, true), map, rows("excel"));
    let western = |text: &str| -> Vec<u8> {
        text.chars()
            .map(|c| match c {
                '€' => 0x80,
                '–' => 0x96,
                c => u8::try_from(u32::from(c)).expect("a Latin character"),
            })
            .collect()
    };
    let latin = "Time,Gerät,Wert,Notiz\n2024-05-01T00:00:00Z,Zähler-w,1.5,20 °C – 5 €\n";
    v.good(
        "w.csv",
        western(latin),
        &format!("{map} --encoding windows-1252"),
        json!([[format!("Zähler-w {}", TWO_TIMES[0]), 1.5, "20 °C – 5 €"]]),
    );
    v.bad("w-not-said.csv", western(latin), map, json!({"reason": "invalid_utf8", "line": 1, "byte": "0xE4", "hint": "--encoding"}));
    let with = |before: &str, device: &[u8], after: &str| [before.as_bytes(), device, after.as_bytes()].concat();
    // In these, bytes of ASCII letters are second bytes of characters.
    let sjis = with("Time,Tag,Value\n2024-05-01T00:00:00Z,", b"\x83Z\x83\x93\x83T\x81[\x89\xb7\x93x\x95\\", ",1\n");
    let tag = "--map ts=Time,device_id=Tag,value=Value";
    v.good("sjis.csv", sjis, &format!("{tag} --encoding shift_jis"), json!([[format!("センサー温度表 {}", TWO_TIMES[0]), 1]]));
    let gb = with("Time,Tag,Value\n2024-05-01T00:00:00Z,", b"\xce\xc2\xb6\xc8\x819\xee9\x952\x826", ",1\n");
    v.good("gb.csv", gb, &format!("{tag} --encoding gb18030"), json!([[format!("温度㐀𠀀 {}", TWO_TIMES[0]), 1]]));
    let cyrillic = with("Time,Tag,Value\n2024-05-01T00:00:00Z,", b"\xc4\xe0\xf2\xf7\xe8\xea", ",1\n");
    v.good("cyr.csv", cyrillic, &format!("{tag} --encoding windows-1251"), json!([[format!("Датчик {}", TWO_TIMES[0]), 1]]));
    // Half a character, a surrogate without its other half, a sequence that is longer than it need be.
    let odd = [utf16("Time,Tag,Value\n2024-05-01T00:00:00Z,a,1\n", false, true), vec![b'2']].concat();
    v.bad("odd.csv", odd, tag, json!({"reason": ["invalid_utf8", "field_count"]}));
    let mut lone = utf16("Time,Tag,Value\n2024-05-01T00:00:00Z,", false, true);
    lone.extend([0x00, 0xD8]);
    lone.extend(utf16(",1\n", false, false));
    v.bad("lone.csv", lone, tag, json!({"reason": "invalid_utf8", "line": 2, "column": "Tag"}));
    for (name, bytes) in [("overlong", &b"\xc0\xaf"[..]), ("surrogate", b"\xed\xa0\x80"), ("cut", b"\xe2\x82")] {
        let content = with("Time,Tag,Value\n2024-05-01T00:00:00Z,x", bytes, ",1\n");
        v.bad(
            &format!("{name}.csv"),
            content,
            tag,
            json!({"reason": "invalid_utf8", "line": 2, "column": "Tag", "byte": format!("0x{:02X}", bytes[0])}),
        );
    }
    v.bad(
        "unknown.csv",
        csv_of(&["1"], ','),
        "--encoding utf-9",
        json!({"reason": "invalid_option", "option": "--encoding", "hint": "utf-8"}),
    );
    v.finish();
}

#[test]
fn headers_and_delimiters() {
    let mut v = Variants::new();
    let row = || json!([[TWO_TIMES[0], 1.5]]);
    v.good("tabs.csv", "Time\tTag\tValue\n2024-05-01T00:00:00Z\tx\t1.5\n", "", row());
    v.good("pipes.txt", "Time|Tag|Value\n2024-05-01T00:00:00Z|x|1.5\n", "--format csv", row());
    v.good("caret.csv", "Time^Tag^Value\n2024-05-01T00:00:00Z^x^1.5\n", "--delimiter '^'", row());
    v.good("sep.csv", "\u{feff}sep=;\r\nTime;Tag;Value\r\n2024-05-01T00:00:00Z;x;1.5\r\n", "", row());
    v.good(
        "sep-preamble.csv",
        "\u{feff}sep=;\r\nStation;Süd\r\n\r\nTime;Tag;Value\r\n2024-05-01T00:00:00Z;x;1.5\r\n",
        "--header-line 4",
        row(),
    );
    v.good("sep-quoted.csv", "\"sep=,\"\nTime,Tag,Value\n2024-05-01T00:00:00Z,\"a;b;c;d\",1.5\n", "", row());
    v.good("returns.csv", "Time,Tag,Value\r2024-05-01T00:00:00Z,x,1.5\r", "", row());
    v.good(
        "mixed-ends.csv",
        "Time,Tag,Value\r\n2024-05-01T00:00:00Z,x,1.5\n\n\r\n2024-05-01T00:01:00Z,x,2\r",
        "",
        json!([[TWO_TIMES[0], 1.5], [TWO_TIMES[1], 2]]),
    );
    v.good("no-end.csv", "Time,Value\n2024-05-01T00:00:00Z,1.5", "", row());
    let line_7 =
        "Logger 4711;;\n\"Ort: Straße 1\nHinterhof\";;\nStart;2024;\n\n\nTime;Tag;Value\n[UTC];;[°C]\n2024-05-01T00:00:00Z;x;1.5\n";
    v.good("line7.csv", line_7, "--header-line 7 --skip-after-header 1", row());
    v.bad("line7-not-said.csv", line_7, "", json!({"reason": "column_not_found", "hint": "--header-line 7"}));
    v.bad("line7-units.csv", line_7, "--header-line 7", json!({"reason": "bad_timestamp", "line": 8, "value": "[UTC]", "column": "Time"}));
    v.bad("line-99.csv", line_7, "--header-line 99", json!({"reason": "invalid_option", "option": "--header-line", "file": "line-99.csv"}));
    v.good("none.csv", "2024-05-01T00:00:00Z,x,1.5\n", "--columns Time,Tag,Value", row());
    v.bad(
        "none-short.csv",
        "2024-05-01T00:00:00Z,1.5\n",
        "--columns Time,Tag,Value",
        json!({"reason": "field_count", "line": 1, "expected_fields": 3, "found_fields": 2}),
    );
    // Each of the files glued together had a header, and its mark.
    let part = |i: usize| format!("\u{feff}Time,Value\r\n2024-05-01T00:0{i}:00Z,{}\r\n", i + 1);
    let glued = [part(0), part(1)].concat();
    v.good_files(
        &[("glued.csv", glued.as_bytes())],
        "",
        json!([[TWO_TIMES[0], 1], [TWO_TIMES[1], 2]]),
        json!({"repeated_headers": 1, "rows_read": 2}),
    );
    let parts = [part(0), part(1)];
    let files = [("parts.1.csv", parts[0].as_bytes()), ("parts.2.csv", parts[1].as_bytes())];
    v.good_files(&files, "", json!([[TWO_TIMES[0], 1], [TWO_TIMES[1], 2]]), json!({"repeated_headers": 0}));
    // Columns may stand in another order in another file, but not under another header in the same one.
    let files = [("order.1.csv", &b"Time,Value\n2024-05-01T00:00:00Z,1\n"[..]), ("order.2.csv", b"Value;Time\n2;2024-05-01T00:01:00Z\n")];
    v.good_files(&files, "", json!([[TWO_TIMES[0], 1], [TWO_TIMES[1], 2]]), json!({"files_missing_column": {}}));
    v.bad(
        "turned.csv",
        "Time,Value\n2024-05-01T00:00:00Z,1\nValue,Time\n2,2024-05-01T00:01:00Z\n",
        "",
        json!({"reason": ["bad_timestamp", "bad_number"], "line": 3}),
    );
    v.good("names.csv", " Time , value \n2024-05-01T00:00:00Z,1.5\n", "", row());
    v.good("exact.csv", "Time,value,Value\n2024-05-01T00:00:00Z,9,1.5\n", "", row());
    v.good("plus.csv", "Time,kWh+.=x\n2024-05-01T00:00:00Z,1.5\n", "--map 'ts=Time,value=kWh\\+\\.\\=x'", row());
    v.good("newline-in-name.csv", "Time,\"Power\n[kW]\"\n2024-05-01T00:00:00Z,1.5\n", "--map 'ts=Time,value=Power\n[kW]'", row());
    v.good("empty-names.csv", ",Time,,Value,\n1,2024-05-01T00:00:00Z,,1.5,\n", "", row());
    v.good("twins.csv", "Time,x,x,Value\n2024-05-01T00:00:00Z,1,2,1.5\n", "", row());
    v.bad("twin.csv", "Time,Value,Value\n2024-05-01T00:00:00Z,1,2\n", "", json!({"reason": "ambiguous_column", "file": "twin.csv"}));
    v.bad(
        "case-twin.csv",
        "Time,value,VALUE\n2024-05-01T00:00:00Z,1,2\n",
        "",
        json!({"reason": "ambiguous_column", "file": "case-twin.csv"}),
    );
    v.bad(
        "trailing.csv",
        "Time,Value\n2024-05-01T00:00:00Z,1,\n",
        "",
        json!({"reason": "field_count", "line": 2, "expected_fields": 2, "found_fields": 3}),
    );
    v.bad("no-column.csv", "Zeit,Value\n2024-05-01T00:00:00Z,1\n", "", json!({"reason": "column_not_found", "file": "no-column.csv"}));
    // Two spellings of one letter look the same.
    let composed = "Time,Zählerstand\n2024-05-01T00:00:00Z,1.5\n";
    let decomposed = composed.replace('ä', "a\u{308}");
    v.good("nfc.csv", composed, "--map ts=Time,value=Zählerstand", row());
    v.good("nfd.csv", &decomposed, "--map ts=Time,value=Za\u{308}hlerstand", row());
    v.good("upper.csv", composed, "--map ts=TIME,value=ZÄHLERSTAND", row());
    v.bad("nfd-asked.csv", composed, "--map ts=Time,value=Za\u{308}hlerstand", json!({"reason": "column_not_found"}));
    v.finish();
}

#[test]
fn quotes_and_empty_fields() {
    let mut v = Variants::new();
    let map = "--map ts=Time,value=Value,note=Note";
    let notes = "Time,Value,Note\n\
        2024-05-01T00:00:00Z,\"1.5\",\"\"\"\"\n\
        2024-05-01T00:01:00Z,\"\",\"\"\n\
        2024-05-01T00:02:00Z,,\n\
        2024-05-01T00:03:00Z,\" 2 \",\" a \"\n\
        \"2024-05-01T00:04:00Z\",3,\"x\r\ny\rz\nü,\"\"q\"\"\"\n\
        2024-05-01T00:05:00Z,4,5\" pipe\n\
        2024-05-01T00:06:00Z,5,a\"b\"\"c\n";
    v.good(
        "notes.csv",
        notes,
        map,
        json!([
            ["2024-05-01T00:00:00Z", 1.5, "\""],
            ["2024-05-01T00:01:00Z", null, ""],
            ["2024-05-01T00:02:00Z", null, null],
            ["2024-05-01T00:03:00Z", 2, " a "],
            ["2024-05-01T00:04:00Z", 3, "x\r\ny\rz\nü,\"q\""],
            ["2024-05-01T00:05:00Z", 4, "5\" pipe"],
            ["2024-05-01T00:06:00Z", 5, "a\"b\"\"c"],
        ]),
    );
    let header = "Time,Value,Note\n2024-05-01T00:00:00Z,1,\"a\nb\"\n";
    v.bad(
        "open.csv",
        format!("{header}2024-05-01T00:01:00Z,2,\"c\n2024-05-01T00:02:00Z,3,d\n"),
        map,
        json!({"reason": "unclosed_quote", "line": 4}),
    );
    v.bad(
        "open-skip.csv",
        format!("{header}2024-05-01T00:01:00Z,2,\"c\n"),
        &format!("{map} --on-bad-row skip"),
        json!({"reason": "unclosed_quote", "line": 4}),
    );
    v.bad("three.csv", "Time,Value,Note\n2024-05-01T00:00:00Z,1,\"\"\"\n", map, json!({"reason": "unclosed_quote", "line": 2}));
    v.bad(
        "after.csv",
        "Time,Value,Note\n2024-05-01T00:00:00Z,1,\"a\"b\n",
        map,
        json!({"reason": "bad_value", "line": 2, "column": "Note"}),
    );
    v.bad("late-line.csv", format!("{header}2024-05-01T00:01:00Z,?,x\n"), map, json!({"reason": "bad_number", "line": 4, "value": "?"}));
    // Texts that mean NULL: as they stand, not in keys, and counted.
    let nulls = "Time,Value,Note\n2024-05-01T00:00:00Z,\\N,\\N\n2024-05-01T00:01:00Z,n/a,N/A\n2024-05-01T00:02:00Z,—,keine Daten\n";
    let rows = json!([["2024-05-01T00:00:00Z", null, null], ["2024-05-01T00:01:00Z", null, "N/A"], ["2024-05-01T00:02:00Z", null, null]]);
    let options = format!("{map} --null '\\N,n/a,—,keine Daten'");
    v.good_files(&[("nulls.csv", nulls.as_bytes())], &options, rows, json!({"nulled": {"value": 3, "note": 2}}));
    v.bad(
        "null-not-said.csv",
        "Time,Value\n2024-05-01T00:00:00Z,\\N\n",
        "",
        json!({"reason": "bad_number", "value": "\\N", "hint": "--null"}),
    );
    v.good(
        "null-key.csv",
        "Time,Tag,Value\n2024-05-01T00:00:00Z,n/a,1\n",
        "--map ts=Time,device_id=Tag,value=Value --null n/a",
        json!([["n/a 2024-05-01T00:00:00Z", 1]]),
    );
    v.bad(
        "key-empty.csv",
        "Time,Tag,Value\n2024-05-01T00:00:00Z,,1\n",
        "--map ts=Time,device_id=Tag,value=Value",
        json!({"reason": "null_in_key", "line": 2, "column": "Tag"}),
    );
    // A quoted empty key is a text like any other.
    let sentinel = "Time,Value,Count\n2024-05-01T00:00:00Z,-9999.00,-1\n2024-05-01T00:01:00Z,-999,0\n2024-05-01T00:02:00Z,-9.999e3,1\n";
    let options = "--map ts=Time,value=Value,count=Count --null-number value=-9999 --null-number count=-1";
    let rows = json!([
        ["2024-05-01T00:00:00Z", null, null, null],
        ["2024-05-01T00:01:00Z", -999, null, 0],
        ["2024-05-01T00:02:00Z", null, null, 1]
    ]);
    v.good_files(&[("sentinel.csv", sentinel.as_bytes())], options, rows, json!({"nulled": {"value": 2, "count": 1}}));
    // State texts of one or more numeric columns of a row go to the text column.
    let states = "Time,Value,Count\n2024-05-01T00:00:00Z,I/O Timeout,1\n2024-05-01T00:01:00Z,1.5,Störung\n2024-05-01T00:02:00Z,2,2\n2024-05-01T00:03:00Z,Bad,Bad\n";
    let options = "--map ts=Time,value=Value,count=Count --bad-text-to note";
    let rows = json!([
        ["2024-05-01T00:00:00Z", null, "I/O Timeout", 1],
        ["2024-05-01T00:01:00Z", 1.5, "Störung"],
        ["2024-05-01T00:02:00Z", 2, null, 2],
    ]);
    v.good("states.csv", &states[..states.len() - "2024-05-01T00:03:00Z,Bad,Bad\n".len()], options, rows);
    v.finish();
}

#[test]
fn reports_of_bad_rows() {
    let mut v = Variants::new();
    let content = "Time,Value\n2024-05-01T00:00:00Z,1\nquatsch,2\n2024-05-01T00:02:00Z,zwei\n2024-05-01T00:03:00Z,zwei\n2024-05-01T00:04:00Z\n2024-05-01T00:05:00Z,drei\n";
    v.bad("first.csv", content, "", json!({"reason": "bad_timestamp", "line": 3, "column": "Time", "value": "quatsch", "count": 1}));
    let numbers = content.replace("quatsch", "2024-05-01T00:01:00Z");
    v.bad(
        "distinct.csv",
        &numbers,
        "",
        json!({"reason": "bad_number", "line": 4, "value": "zwei", "count": 3, "distinct": ["zwei", "drei"]}),
    );
    let rows = json!([["2024-05-01T00:00:00Z", 1]]);
    v.good_files(&[("skip.csv", content.as_bytes())], "--on-bad-row skip", rows.clone(), json!({"rejected": 5, "rows_read": 6}));
    v.good_files(&[("limit.csv", content.as_bytes())], "--on-bad-row skip --max-bad-rows 5", rows, json!({"rejected": 5}));
    v.bad("over.csv", content, "--on-bad-row skip --max-bad-rows 4", json!({"reason": "too_many_bad_rows", "limit": 4}));
    v.finish();
}
