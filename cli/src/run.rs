//! One command from start to exit code. Takes the typed words, calls the lake, gives text: data on stdout,
//! progress, notes and errors on stderr. With `--json` stdout holds exactly one object, whatever happens.

use crate::args::{BackfillArgs, Cli, Command, DEFAULT_LAKE, JobVerb, LAKE_VARIABLE, LoadArgs, OutputArgs, TableVerb};
use crate::dry_run::Rehearsal;
use crate::lake::{Lake, Place, remote};
use crate::load::backfill_request;
use crate::output::{Layout, quoted};
use crate::progress::{Console, LogWriter, Style};
use crate::report::{Again, ThisRun};
use crate::request_file::Saved;
use crate::{error_text, html, job_text, lake_text, manual, output_file, plan_file, report, request_file, resolve, signals, table_text};
use clap::Parser;
use clap::error::ErrorKind;
use serde::Serialize;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use timelake_engine::progress::StopFlag;
use timelake_engine::tables::{self, TableInfo, check_create};
use timelake_engine::{jobs, locks, store};
use timelake_model::ledger::State;
use timelake_model::manifest::RunManifest;
use timelake_model::verdict::Verdict;
use timelake_model::{Error, Result, TimestampUs};
use tracing_subscriber::filter::LevelFilter;

const REJECTED: u8 = 4;

/// What a command leaves for stdout, for stderr and for the shell.
#[derive(Debug, Default, PartialEq)]
pub struct Answer {
    pub stdout: String,
    pub stderr: String,
    pub exit_code: u8,
}

pub fn main(words: Vec<OsString>) -> ExitCode {
    let words = resolve::with_help(words);
    let cli = match Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        Err(error) => return refused(&error, &words),
    };
    let settings = Settings::new(&cli.output);
    // A panic is a defect, but the caller still gets its one object and exit code 1.
    let executed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| execute(cli, &settings)));
    let answer = match executed.unwrap_or_else(|_| Err(defect())) {
        Ok(answer) => answer,
        Err(error) => settings.failed(&error),
    };
    let mut exit_code = answer.exit_code;
    if let Err(error) = write_stdout(&answer.stdout) {
        if exit_code == 0 {
            exit_code = error.exit_code();
            write_stderr(&error_text::for_people(&error, settings.stderr));
        } else {
            write_stderr(&answer.stdout); // what went wrong matters more than where it is told
        }
    }
    write_stderr(&answer.stderr);
    ExitCode::from(exit_code)
}

fn defect() -> Error {
    Error::internal("timelake stopped at a defect of its own; the message above says where")
        .hint("what is done is kept: run the same command again, and report the defect if it comes back")
}

/// Help and version are answers, all else is a bad request.
fn refused(error: &clap::Error, words: &[OsString]) -> ExitCode {
    let is_answer = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let texts: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let misspelt = resolve::misspelt_verb(&texts).filter(|_| !is_answer);
    if !is_answer && texts.iter().any(|word| word == "--json") {
        let error = misspelt.unwrap_or_else(|| error_text::from_clap(error));
        let _ = write_stdout(&json(&error_text::as_json(&error))); // the exit code says it as well
        return ExitCode::from(error.exit_code());
    }
    if let Some(error) = misspelt {
        write_stderr(&error_text::for_people(&error, Layout::default()));
        return ExitCode::from(error.exit_code());
    }
    // A closed pipe is no failure of `--help | head`.
    let _ = error.print();
    ExitCode::from(if is_answer { 0 } else { 2 })
}

/// How to speak, taken once from the options, the terminal and the environment.
#[derive(Debug, Clone)]
pub struct Settings {
    pub json: bool,
    pub stdout: Layout,
    pub stderr: Layout,
    pub again: Again,
    progress: Style,
    verbose: u8,
}

impl Settings {
    pub fn new(options: &OutputArgs) -> Settings {
        let (out, err) = (console::Term::stdout(), console::Term::stderr());
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let layout = |term: &console::Term, is_terminal: bool| Layout {
            width: if is_terminal { term.size_checked().map(|(_, columns)| usize::from(columns)) } else { None },
            color: is_terminal && !plain,
        };
        let on_terminal = std::io::stderr().is_terminal();
        let stderr = layout(&err, on_terminal);
        let progress = match (options.quiet, on_terminal) {
            (true, _) => Style::Silent,
            (false, true) => Style::Bar,
            (false, false) => Style::Lines,
        };
        let usual = options.lake.as_os_str() == DEFAULT_LAKE || std::env::var_os(LAKE_VARIABLE).is_some_and(|lake| lake == options.lake);
        let lake = if usual { String::new() } else { format!(" --lake {}", quoted(&options.lake.display().to_string())) };
        Settings {
            json: options.json,
            stdout: layout(&out, std::io::stdout().is_terminal()),
            stderr,
            again: Again { lake },
            progress,
            verbose: options.verbose,
        }
    }

    pub fn failed(&self, error: &Error) -> Answer {
        let exit_code = error.exit_code();
        if self.json {
            Answer { stdout: json(&error_text::as_json(error)), exit_code, ..Default::default() }
        } else {
            Answer { stderr: error_text::for_people(error, self.stderr), exit_code, ..Default::default() }
        }
    }

    pub fn data(&self, value: &impl Serialize, text: impl FnOnce(Layout) -> String) -> Answer {
        Answer { stdout: if self.json { json(value) } else { text(self.stdout) }, ..Default::default() }
    }

    /// A run that found its job published, and when that was.
    fn nothing_to_do(&self, m: &RunManifest, published: TimestampUs) -> Answer {
        self.data(m, |layout| report::nothing_to_do(m, published, layout))
    }

    pub fn manifest(&self, m: &RunManifest, run: &ThisRun) -> Answer {
        let mut answer = self.data(m, |layout| report::summary(m, run, layout, &self.again));
        answer.exit_code = report::exit_code(m);
        if !self.json {
            answer.stderr = report::standing_error(m, self.stderr).unwrap_or_default();
        }
        answer
    }

    /// Cancel asks for CANCELLED; a job that was published first is told as a conflict.
    pub fn cancelled(&self, m: &RunManifest) -> Answer {
        let mut answer = self.data(m, |layout| report::summary(m, &ThisRun::default(), layout, &self.again));
        if m.state != State::Cancelled {
            answer.exit_code = REJECTED;
            if !self.json {
                answer.stderr = format!("note: the job is {}, it could not be cancelled any more\n", m.state);
            }
        }
        answer
    }

    pub fn verdict(&self, verdict: &Verdict) -> Answer {
        let mut answer = self.data(verdict, |layout| job_text::verdict(verdict, layout));
        if let Verdict::Rejected { findings } = verdict {
            answer.exit_code = findings.first().map_or(REJECTED, Error::exit_code);
            if !self.json {
                answer.stderr = findings.iter().map(|finding| error_text::for_people(finding, self.stderr)).collect();
            }
        }
        answer
    }

    fn table(&self, info: &TableInfo, text: fn(&TableInfo, Layout) -> String) -> Answer {
        self.data(info, |layout| text(info, layout))
    }
}

fn execute(cli: Cli, settings: &Settings) -> Result<Answer> {
    if let Some(answer) = needs_no_lake(&cli.command, settings) {
        return answer;
    }
    let console = Arc::new(Console::new(settings.progress, settings.verbose > 0));
    log_to(&console, settings);
    let stop = StopFlag::default();
    let place = Place::of(&cli.output.lake)?;
    let stopping = match &place {
        Place::Folder(_) => "stopping after the current batch (again: end at once)",
        Place::Aws(_) => "stopping; a job that is under way goes on (again: end at once)",
    };
    signals::listen(stop.clone(), console.clone(), stopping)?;
    let available_threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::internal(format!("cannot start the runtime: {error}")))?;
    let answer = runtime.block_on(async {
        match &cli.command {
            Command::Worker(worker) => {
                let options = resolve::worker(worker, available_threads)?;
                let folder = place.folder(
                    "worker",
                    "there the functions do the work: backfill starts them, and `timelake backfill resume JOB` follows them",
                )?;
                let lake = timelake_local::Lake::open(folder, false, remote(), None)?;
                let worked = lake.work(&options, console.as_ref(), &stop).await?;
                Ok(settings.data(&worked, |_| lake_text::worked(&worked)))
            }
            // Answered above.
            Command::Completions { .. } | Command::Man { .. } => Ok(Answer::default()),
            Command::Table { verb } => table(verb, settings, &place).await,
            Command::Backfill(args) => match &args.verb {
                Some(verb) => {
                    let verb = checked_verb(verb, args)?;
                    job(verb, settings, &place.open(false, None).await?, &console, &stop).await
                }
                None => {
                    place.check(&args.load)?;
                    let (request, options) = backfill_request(&args.load, read_request(&args.load)?, available_threads)?;
                    let rehearsal = Rehearsal { place: &place, request: &request, earlier: &options, load: &args.load, settings };
                    if let Some(answer) = rehearsal.before_the_run(&console, &stop).await? {
                        return Ok(answer);
                    }
                    let request = place.fit(request);
                    let lake = place.open(false, None).await?;
                    let manifest = match &lake {
                        Lake::Folder(lake) => {
                            let plan = args.load.plan.as_deref().map(plan_file::read).transpose()?;
                            lake.backfill(&request, &options, plan.as_ref(), console.as_ref(), &stop).await?
                        }
                        Lake::Aws(lake) => {
                            let submitted = lake.submit(&request, &options, console.as_ref()).await?;
                            if args.load.detach && !submitted.already_published {
                                let told = job_text::Detached::of(&submitted);
                                return Ok(settings.data(&told, |layout| told.text(layout, &settings.again)));
                            }
                            lake.follow(&submitted, console.as_ref(), &stop).await?
                        }
                    };
                    ran(&manifest, settings, &lake, &console).await
                }
            },
        }
    });
    console.clear();
    answer
}

/// What is answered from the command's words alone.
fn needs_no_lake(command: &Command, settings: &Settings) -> Option<Result<Answer>> {
    let printed = |text: String| settings.data(&serde_json::json!({ "text": text }), |_| text.clone());
    match command {
        Command::Completions { shell } => Some(Ok(printed(manual::completions(*shell)))),
        Command::Man { command, dir: None } => Some(manual::page(command).map(printed)),
        Command::Man { dir: Some(dir), .. } => Some(manual::pages(dir).map(|files| {
            settings.data(&serde_json::json!({ "dir": dir, "files": files }), |_| files.iter().map(|file| format!("{file}\n")).collect())
        })),
        Command::Backfill(args) if args.verb.is_none() => {
            args.load.save_request.as_deref().map(|file| save_request(&args.load, file, settings))
        }
        _ => None,
    }
}

fn read_request(load: &LoadArgs) -> Result<Option<Saved>> {
    load.request.as_deref().map(request_file::read).transpose()
}

fn save_request(load: &LoadArgs, file: &Path, settings: &Settings) -> Result<Answer> {
    let saved = read_request(load)?;
    let threads_asked = load.threads.is_some() || saved.as_ref().is_some_and(|saved| saved.threads.is_some());
    let (request, _) = backfill_request(load, saved, 1)?;
    let text = request_file::text(&request, threads_asked)?;
    if output_file::is_standard(file) {
        return Ok(Answer { stdout: text, ..Default::default() });
    }
    output_file::write(file, &text)?;
    let again = format!("timelake backfill --request {}{}", quoted(&file.display().to_string()), settings.again.lake);
    Ok(settings.data(&serde_json::json!({ "saved": file }), |layout| report::next_lines(&[again], layout).trim_start_matches('\n').into()))
}

/// `backfill iot.sensor list` has two readings; neither is taken.
fn checked_verb<'a>(verb: &'a JobVerb, args: &BackfillArgs) -> Result<&'a JobVerb> {
    let load = &args.load;
    if load.table.is_none() && load.from.is_empty() && load.request.is_none() && load.save_request.is_none() {
        return Ok(verb);
    }
    Err(Error::invalid(timelake_model::Reason::InvalidOption, "this is a load and a job command at once")
        .hint("write `timelake backfill TABLE --from PATH...`, or a job command alone, for example `timelake backfill list TABLE`")
        .at(|p| {
            p.option = Some("TABLE".into());
            p.value = load.table.clone();
        }))
}

async fn table(verb: &TableVerb, settings: &Settings, place: &Place) -> Result<Answer> {
    let show = async |lake: &Lake, name: &str| {
        let engine = lake.engine();
        jobs::hinted(engine, name, tables::show_table(engine.catalog.as_ref(), name).await).await
    };
    Ok(match verb {
        TableVerb::Create(create) => {
            let warehouse = create.warehouse.as_deref().map(resolve::warehouse).transpose()?;
            let create = resolve::create_table(create)?;
            // A request that cannot be met leaves no lake behind.
            check_create(&create)?;
            let lake = place.open(true, warehouse).await?;
            let engine = lake.engine();
            let made = tables::create_table(engine.catalog.as_ref(), engine.clock.as_ref(), &create).await?;
            settings.table(&made, table_text::table)
        }
        TableVerb::List => {
            let tables = tables::list_tables(place.open(false, None).await?.engine().catalog.as_ref()).await?;
            settings.data(&serde_json::json!({ "tables": tables }), |layout| table_text::list(&tables, layout))
        }
        TableVerb::Show { table } => {
            let name = resolve::table_name(table)?;
            settings.table(&show(&place.open(false, None).await?, &name).await?, table_text::table)
        }
        TableVerb::Contract(contract) => {
            let name = resolve::table_name(&contract.table)?;
            let lake = place.open(false, None).await?;
            let engine = lake.engine();
            let info = match resolve::contract_change(contract) {
                Some(change) => {
                    let changed = tables::set_contract(engine.catalog.as_ref(), engine.clock.as_ref(), &name, &change).await;
                    jobs::hinted(engine, &name, changed).await?
                }
                None => show(&lake, &name).await?,
            };
            settings.table(&info, table_text::contract)
        }
    })
}

async fn job(verb: &JobVerb, settings: &Settings, lake: &Lake, console: &Console, stop: &StopFlag) -> Result<Answer> {
    let engine = lake.engine();
    Ok(match verb {
        JobVerb::List { table } => {
            let table = table.as_deref().map(resolve::table_name).transpose()?;
            let jobs = jobs::list(engine, table.as_deref()).await?;
            settings.data(&serde_json::json!({ "jobs": jobs }), |layout| job_text::list(&jobs, layout))
        }
        JobVerb::Locks { table } => {
            let table = table.as_deref().map(resolve::table_name).transpose()?;
            let locks = locks::list(engine, table.as_deref()).await?;
            settings.data(&serde_json::json!({ "locks": locks }), |layout| lake_text::locks(&locks, layout))
        }
        JobVerb::Gc { older_than, dry_run } => {
            let collected = lake.gc(&resolve::gc(older_than, *dry_run)?).await?;
            settings.data(&collected, |layout| lake_text::collected(&collected, layout))
        }
        JobVerb::Status(job) => {
            let status = jobs::status(engine, &job.job).await?;
            settings.data(&status, |layout| job_text::status(&status, layout, &settings.again))
        }
        JobVerb::Report { job, plan: Some(file), .. } => {
            let plan = plan_file::text(&jobs::plan(engine, &jobs::find(engine, &job.job).await?).await?)?;
            if output_file::is_standard(file) {
                return Ok(Answer { stdout: plan, ..Default::default() });
            }
            written(file, "plan", &plan, settings)?
        }
        JobVerb::Report { job, html, plan: None } => {
            let record = jobs::find(engine, &job.job).await?;
            let manifest = jobs::manifest(engine, &record).await?;
            if let Some(file) = html {
                let timeline = store::load_timeline(engine, &record.job).await?;
                let page = html::report(&manifest, &record, &timeline, &settings.again);
                return page_written(file, page, settings);
            }
            settings.data(&manifest, |layout| report::full(&manifest, &record, layout, &settings.again))
        }
        JobVerb::Resume(job) => ran(&lake.resume(&job.job, console, stop).await?, settings, lake, console).await?,
        JobVerb::Publish(job) => ran(&lake.publish(&job.job, console, stop).await?, settings, lake, console).await?,
        JobVerb::Cancel(job) => settings.cancelled(&lake.cancel(&job.job).await?),
        JobVerb::Validate { job, verify } => settings.verdict(&jobs::validate(engine, &job.job, verify.is_some(), console, stop).await?),
    })
}

fn page_written(file: &Path, page: String, settings: &Settings) -> Result<Answer> {
    if !output_file::is_standard(file) {
        return written(file, "html", &page, settings);
    }
    if settings.json {
        return Err(Error::invalid(timelake_model::Reason::InvalidOption, "stdout cannot hold a page and one JSON object")
            .hint("name a file: --html FILE; or leave out --json")
            .at(|p| p.option = Some("--html".into())));
    }
    Ok(Answer { stdout: page, ..Default::default() })
}

/// Answer of a command that writes a file.
fn written(file: &Path, what: &str, text: &str, settings: &Settings) -> Result<Answer> {
    output_file::write(file, text)?;
    Ok(settings.data(&serde_json::json!({ what: file }), |_| format!("{}\n", file.display())))
}

/// How a run that came to an end is told.
async fn ran(manifest: &RunManifest, settings: &Settings, lake: &Lake, console: &Console) -> Result<Answer> {
    if manifest.already_published {
        let record = jobs::find(lake.engine(), manifest.job.as_str()).await?;
        return Ok(settings.nothing_to_do(manifest, record.updated));
    }
    Ok(settings.manifest(manifest, &ThisRun { rows_read: console.rows_read() }))
}

fn log_to(console: &Arc<Console>, settings: &Settings) {
    let level = match (settings.progress, settings.verbose) {
        (Style::Silent, _) => LevelFilter::ERROR,
        (_, 0) => LevelFilter::WARN,
        (_, 1) => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let writer = LogWriter(console.clone());
    // A subscriber can be set once per process, and this is the only place that does.
    let _ = tracing_subscriber::fmt().with_max_level(level).with_ansi(settings.stderr.color).with_writer(move || writer.clone()).try_init();
}

fn json(value: &impl Serialize) -> String {
    match serde_json::to_string_pretty(value) {
        Ok(text) => text + "\n",
        Err(error) => format!(
            "{{\"error\":{{\"kind\":\"internal\",\"reason\":\"internal\",\"message\":{}}}}}\n",
            serde_json::json!(error.to_string())
        ),
    }
}

/// A reader that went away (`| head`) is no failure; a full disk is.
fn write_stdout(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::unavailable(output_file::reason(&error), format!("cannot write the answer to stdout: {error}"))
                .hint("the work itself is done; `timelake backfill list` and `report JOB` show it again"))
        }
        _ => Ok(()),
    }
}

fn write_stderr(text: &str) {
    // Where stderr is closed nobody can be told.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
