//! An image of one program, as `docker save` writes it.

use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Its name.
pub(crate) const NAME: &str = "lull.invalid/pause:1";

/// Writes it; the program is linked statically.
pub(crate) fn write(program: &Path, place: &Path) -> PathBuf {
    let place = place.join("image");
    std::fs::create_dir_all(place.join("root")).unwrap();
    std::fs::copy(program, place.join("root/pause")).unwrap();
    run(&place, &["tar", "--create", "--file", "layer.tar", "--directory", "root", "pause"]);
    let digest = run(&place, &["sha256sum", "layer.tar"]);
    let digest = digest.split_whitespace().next().unwrap();
    let config = json!({
        "architecture": "amd64", "os": "linux",
        "config": { "Entrypoint": ["/pause"], "WorkingDir": "/" },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
    });
    std::fs::write(place.join("config.json"), config.to_string()).unwrap();
    let manifest = json!([{
        "Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"],
    }]);
    std::fs::write(place.join("manifest.json"), manifest.to_string()).unwrap();
    let files = ["manifest.json", "config.json", "layer.tar"];
    run(&place, &[&["tar", "--create", "--file", "image.tar"][..], &files].concat());
    place.join("image.tar")
}

fn run(place: &Path, command: &[&str]) -> String {
    let output = Command::new(command[0]).args(&command[1..]).current_dir(place).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
