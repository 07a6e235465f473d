//! The process that listens on a port, for the error of a second process. Linux shows the sockets of the user's own
//! processes in `/proc`.

use std::fs;
use std::path::Path;

/// State `LISTEN` in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// Returns the process that listens on a port, such as "process 17 (epwatch serve)"; `None` if it cannot be found.
pub(crate) fn port_holder(port: u16) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    let sockets: Vec<String> = tables
        .iter()
        .flatten()
        .flat_map(|table| table.lines())
        .filter_map(|line| listening_socket(line, port))
        .collect();
    if sockets.is_empty() {
        return None;
    }
    let mut processes = fs::read_dir("/proc").ok()?.flatten();
    processes.find_map(|process| {
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        let mut files = fs::read_dir(process.path().join("fd")).ok()?.flatten();
        let holds = files.any(|file| {
            let target = fs::read_link(file.path()).unwrap_or_default();
            sockets.iter().any(|socket| Path::new(socket) == target)
        });
        holds.then(|| format!("process {pid} ({})", command(&process.path())))
    })
}

/// Returns the socket of a line of `/proc/net/tcp`, as a link in `/proc` names it, if it listens on this port.
fn listening_socket(line: &str, port: u16) -> Option<String> {
    let mut columns = line.split_whitespace();
    let (_, listening_on) = columns.nth(1)?.rsplit_once(':')?;
    let is_it = u16::from_str_radix(listening_on, 16) == Ok(port) && columns.nth(1)? == LISTEN;
    let inode = columns.nth(5)?;
    is_it.then(|| format!("socket:[{inode}]"))
}

/// Returns a process's program and its first argument, which is the subcommand of a process of epwatch.
fn command(process: &Path) -> String {
    let line = fs::read(process.join("cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).into_owned();
    let mut words = line.split('\0');
    let program = words.next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default();
    let argument = words
        .next()
        .filter(|_| program == "epwatch")
        .unwrap_or_default();
    format!("{program} {argument}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn the_listener_of_a_port_is_this_process() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let found = port_holder(port).unwrap();
        let expected = format!("process {} (", std::process::id());
        assert!(found.starts_with(&expected), "{found}");
    }

    #[test]
    fn only_a_listening_socket_of_the_port_counts() {
        let line = |port: &str, state: &str| {
            format!(
                "   0: 0100007F:{port} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  1000        0 4321 1"
            )
        };
        let socket = Some("socket:[4321]".to_owned());
        assert_eq!(listening_socket(&line("126D", "0A"), 4717), socket);
        assert_eq!(listening_socket(&line("126D", "01"), 4717), None);
        assert_eq!(listening_socket(&line("126E", "0A"), 4717), None);
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
        assert_eq!(listening_socket(head, 4717), None);
        assert_eq!(listening_socket("", 4717), None);
    }
}
