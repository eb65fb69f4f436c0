//! The licence texts of the crates in the programs, and its list in CycloneDX 1.5.

use super::graph::{self, Crate};
use crate::command::read_output;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How files with the terms of a crate begin.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];

/// Cargo's facts about a crate besides its version.
struct Details {
    directory: PathBuf,
    authors: String,
    repository: String,
}

/// Writes `THIRD-PARTY-NOTICES.txt` and `lull.cdx.json` to a directory; returns both.
///
/// # Errors
/// If cargo cannot list the crates, or a file cannot be written.
pub(crate) fn write(root: &Path, place: &Path) -> Result<Vec<PathBuf>> {
    let crates = graph::shipped(root)?;
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args(["metadata", "--format-version", "1", "--locked"]);
    let metadata: Value = serde_json::from_str(&read_output(&mut cargo)?)?;
    let details = details(&metadata);
    let of = |part: &Crate| {
        let key = (part.name.clone(), part.version.clone());
        details.get(&key).with_context(|| format!("cargo metadata lacks {}", part.name))
    };
    let mut text = String::from(HEAD);
    for part in &crates {
        text.push_str(&notice(part, of(part)?)?);
    }
    let version = metadata["packages"].as_array().into_iter().flatten();
    let version = version.filter(|package| package["name"] == "lull-cli");
    let version = version.filter_map(|package| package["version"].as_str()).next();
    let listed = bill(version.unwrap_or_default(), &crates);
    std::fs::create_dir_all(place)?;
    let files = ["THIRD-PARTY-NOTICES.txt", "lull.cdx.json"].map(|name| place.join(name));
    std::fs::write(&files[0], text)?;
    std::fs::write(&files[1], format!("{listed:#}\n"))?;
    Ok(files.into())
}

const HEAD: &str = "Lull contains the crates below, each under the terms that follow its name.\n\
     Where terms can be chosen, those of Apache-2.0 or MIT apply. libsqlite3-sys contains\n\
     SQLite, which is in the public domain.\n";

fn details(metadata: &Value) -> BTreeMap<(String, String), Details> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let one = |package: &Value| {
        let manifest = PathBuf::from(text(&package["manifest_path"]));
        let authors = package["authors"].as_array().into_iter().flatten().map(text);
        let details = Details {
            directory: manifest.parent().unwrap_or(Path::new("/")).to_owned(),
            authors: authors.collect::<Vec<_>>().join(", "),
            repository: text(&package["repository"]),
        };
        ((text(&package["name"]), text(&package["version"])), details)
    };
    packages.map(one).collect()
}

/// The section of one crate.
fn notice(part: &Crate, details: &Details) -> Result<String> {
    let mut text = format!("\n{}\n", "=".repeat(80));
    let Crate { name, version, licence } = part;
    // Writing to a text cannot fail.
    let _ = writeln!(text, "{name} {version}: {licence}");
    for line in [&details.authors, &details.repository].into_iter().filter(|it| !it.is_empty()) {
        let _ = writeln!(text, "{line}");
    }
    let mut files = Vec::new();
    for entry in details.directory.read_dir().with_context(|| format!("no source of {name}"))? {
        let path = entry?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_file() && NAMES.iter().any(|start| file.starts_with(start)) {
            files.push(path);
        }
    }
    files.sort();
    for file in files {
        let terms = std::fs::read(&file)?;
        let _ = write!(text, "\n{}\n", String::from_utf8_lossy(&terms).trim_end());
    }
    Ok(text)
}

/// The list of parts as a CycloneDX document. It has no time and no serial number, so that the
/// same source gives the same bytes.
fn bill(version: &str, crates: &[Crate]) -> Value {
    let component = |part: &Crate| {
        let Crate { name, version, licence } = part;
        let purl = format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"));
        json!({
            "type": "library",
            "bom-ref": purl,
            "name": name,
            "version": version,
            "licenses": [{ "expression": licence.replace('/', " OR ") }],
            "purl": purl,
        })
    };
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": {
            "type": "application",
            "bom-ref": "lull",
            "name": "lull",
            "version": version,
            "licenses": [{ "expression": "Apache-2.0" }],
        }},
        "components": crates.iter().map(component).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part() -> Crate {
        Crate { name: "a".into(), version: "1.2.0+b".into(), licence: "MIT/Apache-2.0".into() }
    }

    #[test]
    fn a_notice_has_all_terms_of_a_crate_and_no_other_file() {
        let place = tempfile::tempdir().unwrap();
        for (name, text) in
            [("LICENSE-MIT", "mit\n"), ("license-apache", "apache"), ("lib.rs", "x")]
        {
            std::fs::write(place.path().join(name), text).unwrap();
        }
        let details = Details {
            directory: place.path().to_owned(),
            authors: "An Author".to_owned(),
            repository: String::new(),
        };
        let text = notice(&part(), &details).unwrap();
        let wanted = "a 1.2.0+b: MIT/Apache-2.0\nAn Author\n\nmit\n\napache\n";
        assert!(text.ends_with(wanted), "{text}");
    }

    #[test]
    fn the_bill_names_each_crate_by_its_package_url() {
        let bill = bill("0.1.0", &[part()]);
        assert_eq!(bill["components"][0]["purl"], "pkg:cargo/a@1.2.0%2Bb");
        assert_eq!(bill["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!((&bill["bomFormat"], &bill["version"]), (&"CycloneDX".into(), &1.into()));
    }
}
