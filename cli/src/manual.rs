//! What is made from the command's own definition: shell completions and manual pages. Takes no lake.

use crate::args::{Cli, VERSION};
use crate::output_file;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use std::path::Path;
use timelake_model::similar::names_hint;
use timelake_model::{Error, Reason, Result};

const NAME: &str = "timelake";

pub fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), NAME, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// The page of one command, named by its words.
pub fn page(words: &[String]) -> Result<String> {
    let mut command = whole();
    for word in words.iter().skip_while(|word| *word == NAME) {
        let found = command.get_subcommands().find(|c| c.get_name() == word).cloned();
        command = found.ok_or_else(|| {
            let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
            Error::invalid(Reason::InvalidOption, format!("{} has no command {word}", shown_name(&command)))
                .hint(if names.is_empty() { "leave the word out".into() } else { names_hint(word, "commands", &names) })
                .at(|p| {
                    p.option = Some("COMMAND".into());
                    p.value = Some(word.clone());
                })
        })?;
    }
    rendered(command)
}

/// All pages, as `man` looks for them: `timelake-backfill-report.1`. Gives the names of the files.
pub fn pages(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let mut waiting = vec![whole()];
    while let Some(command) = waiting.pop() {
        waiting.extend(command.get_subcommands().cloned());
        let name = format!("{}.1", page_name(&command));
        output_file::write(&folder.join(&name), &rendered(command)?)?;
        names.push(name);
    }
    names.sort();
    Ok(names)
}

/// Built: subcommands know their whole name and the global options.
fn whole() -> Command {
    let mut command = Cli::command();
    command.build();
    command
}

fn shown_name(command: &Command) -> &str {
    command.get_bin_name().unwrap_or(NAME)
}

fn page_name(command: &Command) -> String {
    shown_name(command).replace(' ', "-")
}

fn rendered(command: Command) -> Result<String> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .source(format!("{NAME} {VERSION}"))
        .manual(NAME)
        .render(&mut page)
        .map_err(|e| Error::internal(format!("the page cannot be made: {e}")))?;
    // Examples are to be copied: their lines stay as they are, until the next section.
    Ok(String::from_utf8_lossy(&page).replace("\n.SH EXTRA\n", "\n.SH EXAMPLES\n.nf\n"))
}
