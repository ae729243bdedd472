//! The inner loops by themselves: `cargo bench -p timelake-kernels`. To compare two commits, see `bench/compare.sh`.

use arrow::array::Array;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use timelake_engine::hash::{column_sum, key_hash};
use timelake_engine::write::{KeyColumn, Tuples, sort};
use timelake_kernels::Readings;
use timelake_model::ColumnType;
use timelake_source::{NumberFormat, Rules, Zone, convert_column};

const ROWS: usize = 1 << 18;
const SERIES: u64 = 1_000;

fn kernels(criterion: &mut Criterion) {
    let readings = Readings::new(ROWS, SERIES);
    let mut group = criterion.benchmark_group("kernels");
    group.throughput(Throughput::Elements(ROWS as u64));

    let (times, values, series) = (readings.time_array(), readings.value_array(), readings.series_array());
    let key = || KeyColumn::new(series.data_type()).expect("a key column");
    let mut known = key();
    let mut codes = [Vec::new()];
    known.intern(&series, &mut codes[0]).expect("codes");
    let ranks = Tuples::new(vec![0]).ranks(&[known]);

    group.bench_function("intern series", |b| {
        b.iter(|| {
            let mut out = Vec::with_capacity(ROWS);
            key().intern(black_box(&series), &mut out).expect("codes");
            out
        });
    });
    group.bench_function("sort by series and time", |b| b.iter(|| sort(black_box(&codes[0]), &ranks, &readings.times, None)));
    group.bench_function("checksum of doubles", |b| b.iter(|| column_sum(black_box(&values))));
    group.bench_function("hashes of keys", |b| {
        b.iter(|| codes[0].iter().zip(&readings.times).fold(0u64, |sum, (code, time)| sum.wrapping_add(key_hash(u64::from(*code), *time))))
    });

    let berlin = Rules { zone: Some(Zone::parse("Europe/Berlin").expect("a zone")), ..Rules::default() };
    group.bench_function("local times to instants", |b| b.iter(|| convert_column(black_box(&times), ColumnType::Timestamptz, &berlin)));
    let texts = readings.time_texts();
    group.bench_function("times from texts", |b| b.iter(|| convert_column(black_box(&texts), ColumnType::Timestamptz, &berlin)));
    let comma = Rules { numbers: NumberFormat { decimal: ',', thousands: None }, ..Rules::default() };
    let numbers = readings.value_texts();
    group.bench_function("numbers from texts", |b| b.iter(|| convert_column(black_box(&numbers), ColumnType::Double, &comma)));
    group.finish();
}

criterion_group!(benches, kernels);
criterion_main!(benches);
