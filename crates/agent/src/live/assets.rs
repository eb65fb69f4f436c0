//! The files of the page, embedded in the program, so that no request reads the file system.

/// One file.
pub(super) struct Asset {
    /// Its whole path in the address.
    pub(super) path: &'static str,
    /// Its media type.
    pub(super) kind: &'static str,
    /// Its bytes.
    pub(super) bytes: &'static [u8],
}

macro_rules! assets {
    ($($path:literal = $file:literal, $kind:ident;)*) => {
        &[$(Asset {
            path: $path,
            kind: $kind,
            bytes: include_bytes!(concat!("../../web/", $file)),
        }),*]
    };
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

/// Every file there is.
pub(super) const ALL: &[Asset] = assets! {
    "/" = "index.html", HTML;
    "/favicon.svg" = "favicon.svg", IMAGE;
    "/style.css" = "style.css", CSS;
    "/main.js" = "main.js", SCRIPT;
    "/charts.js" = "charts.js", SCRIPT;
    "/feed.js" = "feed.js", SCRIPT;
    "/format.js" = "format.js", SCRIPT;
    "/heat.js" = "heat.js", SCRIPT;
    "/journal.js" = "journal.js", SCRIPT;
    "/operator.js" = "operator.js", SCRIPT;
    "/panels.js" = "panels.js", SCRIPT;
    "/summary.js" = "summary.js", SCRIPT;
    "/vendor/uPlot.iife.min.js" = "vendor/uPlot.iife.min.js", SCRIPT;
    "/vendor/uPlot.min.css" = "vendor/uPlot.min.css", CSS;
    "/vendor/uPlot-LICENSE.txt" = "vendor/uPlot-LICENSE.txt", TEXT;
};

/// The file at a path.
pub(super) fn at(path: &str) -> Option<&'static Asset> {
    ALL.iter().find(|asset| asset.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bound on the bytes of one load of the page over a slow line.
    const BYTES_MAX: usize = 200_000;

    #[test]
    fn the_page_is_small() {
        let bytes: usize = ALL.iter().map(|asset| asset.bytes.len()).sum();
        assert!(bytes <= BYTES_MAX, "{bytes} bytes");
    }

    #[test]
    fn whatever_the_page_loads_is_there_and_all_that_is_there_is_loaded() {
        let all: String = ALL
            .iter()
            .filter(|asset| !asset.path.starts_with("/vendor/"))
            .map(|asset| String::from_utf8_lossy(asset.bytes))
            .collect();
        for asset in ALL.iter().filter(|asset| asset.path != "/" && asset.kind != TEXT) {
            let name = asset.path.trim_start_matches('/');
            assert!(all.contains(&format!("{name}\"")), "nothing loads {name}");
        }
        assert!(!all.contains("https://") && !all.contains("//cdn"), "loads from elsewhere");
    }

    #[test]
    fn only_whole_paths_are_served() {
        for path in ["/../Cargo.toml", "/vendor/../index.html", "//", "/index.html/", "/vendor/"] {
            assert!(at(path).is_none(), "{path}");
        }
        assert!(at("/").is_some());
    }
}
