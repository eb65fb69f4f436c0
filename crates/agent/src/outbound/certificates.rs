//! Certificates for tests, made by `openssl`.

use std::path::Path;
use std::process::Command;

/// Runs openssl in a directory.
fn openssl(place: &Path, arguments: &str) {
    let mut command = Command::new("openssl");
    let output = command.current_dir(place).args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Makes an authority and a certificate by it: `NAME.pem`, `NAME-leaf.pem`, `NAME-leaf.key`.
pub(crate) fn certify(place: &Path, name: &str) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    openssl(place, &format!("req -x509 {key} -subj /CN={name} -keyout {name}.key -out {name}.pem"));
    std::fs::write(place.join("names"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    openssl(
        place,
        &format!("req -new {key} -subj /CN=leaf -keyout {name}-leaf.key -out {name}.csr"),
    );
    openssl(
        place,
        &format!(
            "x509 -req -in {name}.csr -CA {name}.pem -CAkey {name}.key -CAcreateserial \
             -days 2 -extfile names -out {name}-leaf.pem"
        ),
    );
}
