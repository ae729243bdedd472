//! HTML as values: text can only get into a page escaped, whatever files, columns and messages hold.

use std::fmt::Write;

/// A piece of a page, well-formed by construction.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Html(String);

impl Html {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for Html {
    fn from(text: &str) -> Html {
        Html(escaped(text))
    }
}
impl From<String> for Html {
    fn from(text: String) -> Html {
        Html::from(text.as_str())
    }
}
impl From<Vec<Html>> for Html {
    fn from(pieces: Vec<Html>) -> Html {
        pieces.into_iter().collect()
    }
}
impl<const N: usize> From<[Html; N]> for Html {
    fn from(pieces: [Html; N]) -> Html {
        pieces.into_iter().collect()
    }
}
impl FromIterator<Html> for Html {
    fn from_iter<I: IntoIterator<Item = Html>>(pieces: I) -> Html {
        Html(pieces.into_iter().map(|piece| piece.0).collect())
    }
}

/// An element with its end tag: none of those that have none.
pub fn element(tag: &'static str, attributes: &[(&'static str, &str)], content: impl Into<Html>) -> Html {
    let mut out = format!("<{tag}");
    for (name, value) in attributes {
        // A string takes whatever is written to it.
        let _ = write!(out, " {name}=\"{}\"", escaped(value));
    }
    out.push('>');
    out.push_str(&content.into().0);
    let _ = write!(out, "</{tag}>");
    Html(out)
}

/// An element of a class.
pub fn of(tag: &'static str, class: &str, content: impl Into<Html>) -> Html {
    element(tag, &[("class", class)], content)
}

pub fn plain(tag: &'static str, content: impl Into<Html>) -> Html {
    element(tag, &[], content)
}

/// The whole page. `style` is our own; nothing is loaded from anywhere, and the browser is told to refuse it.
pub fn page(title: &str, style: &'static str, body: Html) -> String {
    let title = escaped(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{}\n</body>\n</html>\n",
        body.0
    )
}

/// Characters of markup as entities; those that are not seen, or that turn the text around them, as their escapes.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' => out.push(c),
            c if c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => {
                out.extend(c.escape_default());
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        let hostile = "<script>alert('1')</script>&amp;\"\u{0}\u{202e}x";
        let safe = "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;amp;&quot;\\u{0}\\u{202e}x";
        assert_eq!(plain("p", hostile).0, format!("<p>{safe}</p>"));
        assert_eq!(element("p", &[("title", hostile)], Html::default()).0, format!("<p title=\"{safe}\"></p>"));
        assert!(page(hostile, "", Html::default()).contains(&format!("<title>{safe}</title>")));
    }

    #[test]
    fn pieces_are_put_together_as_they_are() {
        let row: Html = ["a&b", "c"].into_iter().map(|text| plain("td", text)).collect();
        assert_eq!(of("tr", "x", row).0, "<tr class=\"x\"><td>a&amp;b</td><td>c</td></tr>");
    }
}
