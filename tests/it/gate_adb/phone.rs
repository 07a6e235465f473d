//! A stand-in for a phone's daemon, to which a real adb connects. It knows the exact requests of a session. Any other
//! request makes the test fail.
//!
//! Messages follow AOSP's `adb/protocol.txt` and `SYNC.TXT`. A session's command runs on this machine, with a folder of
//! the test instead of `/data/local/tmp`.

use std::{
    collections::HashMap,
    fs,
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc, Condvar, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use tempfile::TempDir;

const CNXN: u32 = u32::from_le_bytes(*b"CNXN");
const AUTH: u32 = u32::from_le_bytes(*b"AUTH");
const OPEN: u32 = u32::from_le_bytes(*b"OPEN");
const OKAY: u32 = u32::from_le_bytes(*b"OKAY");
const WRTE: u32 = u32::from_le_bytes(*b"WRTE");
const CLSE: u32 = u32::from_le_bytes(*b"CLSE");
const VERSION: u32 = 0x0100_0001;
const MOST_DATA: u32 = 1 << 18;

/// Kinds of packets of adb's shell protocol.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const EXIT: u8 = 3;
const CLOSE_STDIN: u8 = 4;

/// The phone's folder in the requests.
const FOLDER: &str = "/data/local/tmp";

/// The way a phone treats a connecting computer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    Open,
    /// The phone asks its user, who does not answer.
    Asks,
    /// The phone does not answer at all.
    Silent,
}

/// The phone's reaction to a command.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    /// Runs the command on this machine.
    Runs,
    /// Prints this text, and ends with this code.
    Says {
        stdout: String,
        stderr: String,
        code: u8,
    },
}

/// The expected requests to a phone, with its answers.
pub(super) struct Script {
    pub(super) door: Door,
    /// Commands, with `DIR` for the session's folder and `ID` for its number. `*` at the end stands for the rest.
    pub(super) answers: Vec<(String, Answer)>,
    /// Number of bytes that the phone can store.
    pub(super) room: usize,
}

/// A phone that is connected.
pub(super) struct Phone {
    pub(super) serial: String,
    pub(super) folder: TempDir,
    shared: Arc<Shared>,
}

struct Shared {
    script: Script,
    folder: PathBuf,
    refused: Mutex<Vec<String>>,
    connections: Mutex<Vec<TcpStream>>,
}

impl Phone {
    pub(super) fn new(script: Script) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let shared = Arc::new(Shared {
            script,
            folder: folder.path().to_owned(),
            refused: Mutex::default(),
            connections: Mutex::default(),
        });
        let serial = listener.local_addr().unwrap().to_string();
        let of_thread = Arc::clone(&shared);
        thread::spawn(move || {
            for connection in listener.incoming() {
                let (connection, shared) = (connection.unwrap(), Arc::clone(&of_thread));
                let kept = connection.try_clone().unwrap();
                shared.connections.lock().unwrap().push(kept);
                // A connection may break at any time.
                thread::spawn(move || drop(serve(connection, &shared)));
            }
        });
        Self {
            serial,
            folder,
            shared,
        }
    }

    /// Breaks the cable.
    pub(super) fn cut_connections(&self) {
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            // Fails only for a connection that has already ended.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Checks that the phone got only known requests, and has no file of a session.
    #[track_caller]
    pub(super) fn check(&self) {
        let refused = self.shared.refused.lock().unwrap();
        assert!(refused.is_empty(), "{refused:#?}");
        let left: Vec<_> = fs::read_dir(self.folder.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// Sends a message.
fn send(to: &Mutex<TcpStream>, command: u32, args: [u32; 2], data: &[u8]) -> io::Result<()> {
    let sum = data.iter().map(|byte| u32::from(*byte)).sum();
    let length = u32::try_from(data.len()).unwrap();
    let mut message = Vec::new();
    for field in [command, args[0], args[1], length, sum, !command] {
        message.extend(field.to_le_bytes());
    }
    message.extend(data);
    to.lock().unwrap().write_all(&message)
}

/// Answers one connection.
fn serve(mut from: TcpStream, shared: &Arc<Shared>) -> io::Result<()> {
    let to = Arc::new(Mutex::new(from.try_clone()?));
    let mut streams = Streams::default();
    let mut next = 1;
    loop {
        let mut head = [0; 24];
        from.read_exact(&mut head)?;
        let field = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let (command, theirs, ours) = (field(0), field(4), field(8));
        let mut data = vec![0; usize::try_from(field(12)).unwrap()];
        from.read_exact(&mut data)?;
        match (command, shared.script.door) {
            (_, Door::Silent) => {}
            // The computer sends its key last, and the phone's user does not answer.
            (CNXN, Door::Asks) => send(&to, AUTH, [1, 0], &[7; 20])?,
            (AUTH, _) if theirs == 2 => send(&to, AUTH, [1, 0], &[7; 20])?,
            (AUTH, _) => {}
            (CNXN, Door::Open) => {
                let banner = b"device::ro.product.name=p;ro.product.model=m;ro.product.device=d;features=shell_v2,cmd";
                send(&to, CNXN, [VERSION, MOST_DATA], banner)?;
            }
            (OPEN, _) => {
                let service = String::from_utf8_lossy(&data)
                    .trim_end_matches('\0')
                    .to_owned();
                let (stream, incoming) = Stream::new(next, theirs, Arc::clone(&to));
                streams.0.insert(next, Arc::clone(&stream));
                next += 1;
                send(&to, OKAY, [stream.ours, theirs], &[])?;
                let shared = Arc::clone(shared);
                thread::spawn(move || {
                    // A connection may break at any time.
                    let _ = service_of(&service, &stream, incoming, &shared);
                    let _ = send(&stream.to, CLSE, [stream.ours, stream.theirs], &[]);
                });
            }
            (WRTE, _) => {
                if let Some(stream) = streams.0.get(&ours) {
                    send(&to, OKAY, [ours, theirs], &[])?;
                    // The service may have ended.
                    let _ = stream
                        .data
                        .lock()
                        .unwrap()
                        .as_ref()
                        .map(|data_to| data_to.send(data));
                }
            }
            (OKAY, _) => {
                if let Some(stream) = streams.0.get(&ours) {
                    stream.set_ready(true);
                }
            }
            (CLSE, _) => {
                if let Some(stream) = streams.0.remove(&ours) {
                    stream.end();
                }
            }
            (other, _) => panic!("a message that adb does not send: {other:x}"),
        }
    }
}

/// The open streams of a connection, which end with it.
#[derive(Default)]
struct Streams(HashMap<u32, Arc<Stream>>);

impl Drop for Streams {
    fn drop(&mut self) {
        for stream in self.0.values() {
            stream.end();
        }
    }
}

/// A stream of a connection.
struct Stream {
    ours: u32,
    theirs: u32,
    to: Arc<Mutex<TcpStream>>,
    data: Mutex<Option<Sender<Vec<u8>>>>,
    /// Whether the other side has confirmed the last message.
    ready: Mutex<bool>,
    changed: Condvar,
}

impl Stream {
    fn new(ours: u32, theirs: u32, to: Arc<Mutex<TcpStream>>) -> (Arc<Self>, Receiver<Vec<u8>>) {
        let (sender, receiver) = channel();
        let stream = Self {
            ours,
            theirs,
            to,
            data: Mutex::new(Some(sender)),
            ready: Mutex::new(true),
            changed: Condvar::new(),
        };
        (Arc::new(stream), receiver)
    }

    fn set_ready(&self, ready: bool) {
        *self.ready.lock().unwrap() = ready;
        self.changed.notify_all();
    }

    fn end(&self) {
        self.data.lock().unwrap().take();
        self.set_ready(true);
    }

    fn write(&self, data: &[u8]) -> io::Result<()> {
        for part in data.chunks(usize::try_from(MOST_DATA).unwrap()) {
            let mut ready = self.ready.lock().unwrap();
            while !*ready {
                ready = self.changed.wait(ready).unwrap();
            }
            *ready = false;
            drop(ready);
            send(&self.to, WRTE, [self.ours, self.theirs], part)?;
        }
        Ok(())
    }

    /// Sends a packet of adb's shell protocol.
    fn packet(&self, kind: u8, data: &[u8]) -> io::Result<()> {
        let mut packet = vec![kind];
        packet.extend(u32::try_from(data.len()).unwrap().to_le_bytes());
        packet.extend(data);
        self.write(&packet)
    }
}

/// The bytes of a stream, independent of their division into messages.
struct Incoming {
    from: Receiver<Vec<u8>>,
    left: Vec<u8>,
}

impl Incoming {
    fn take(&mut self, n: usize) -> Option<Vec<u8>> {
        while self.left.len() < n {
            self.left.extend(self.from.recv().ok()?);
        }
        let rest = self.left.split_off(n);
        Some(std::mem::replace(&mut self.left, rest))
    }

    fn number(&mut self) -> Option<usize> {
        let bytes = self.take(4)?;
        usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
    }
}

fn service_of(
    service: &str,
    stream: &Arc<Stream>,
    incoming: Receiver<Vec<u8>>,
    shared: &Shared,
) -> io::Result<()> {
    let mut incoming = Incoming {
        from: incoming,
        left: Vec::new(),
    };
    if service == "sync:" {
        return sync(stream, &mut incoming, shared);
    }
    let shell = service.strip_prefix("shell,v2,");
    let command = shell.and_then(|shell| shell.split_once("raw:"));
    match command {
        Some((_, command)) => run(command, stream, incoming, shared),
        None => {
            shared.refused.lock().unwrap().push(service.to_owned());
            Ok(())
        }
    }
}

/// Returns the command with `ID` for the session's number, and `DIR` for its folder.
fn without_folder(command: &str) -> String {
    const BEFORE_ID: &str = "atch-";
    let begin = command.find(BEFORE_ID).map(|at| at + BEFORE_ID.len());
    let id = begin.and_then(|at| command.get(at..at + 16));
    let text = id.map_or_else(|| command.to_owned(), |id| command.replace(id, "ID"));
    text.replace(&format!("{FOLDER}/epwatch-ID"), "DIR")
}

fn run(
    command: &str,
    stream: &Arc<Stream>,
    mut incoming: Incoming,
    shared: &Shared,
) -> io::Result<()> {
    let asked = without_folder(command);
    let mut answers = shared.script.answers.iter();
    let is_it = |known: &str| match known.strip_suffix('*') {
        Some(begin) => asked.starts_with(begin),
        None => asked == known,
    };
    match answers.find(|(known, _)| is_it(known)) {
        None => {
            shared.refused.lock().unwrap().push(asked);
            stream.packet(EXIT, &[99])
        }
        Some((
            _,
            Answer::Says {
                stdout,
                stderr,
                code,
            },
        )) => {
            for (kind, text) in [(STDOUT, stdout), (STDERR, stderr)] {
                if !text.is_empty() {
                    stream.packet(kind, text.as_bytes())?;
                }
            }
            stream.packet(EXIT, &[*code])
        }
        Some((_, Answer::Runs)) => {
            let here = command.replace(FOLDER, &shared.folder.display().to_string());
            let mut child = Command::new("sh")
                .arg("-c")
                .arg(here)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()?;
            let outputs: [(u8, Box<dyn Read + Send>); 2] = [
                (STDOUT, Box::new(child.stdout.take().unwrap())),
                (STDERR, Box::new(child.stderr.take().unwrap())),
            ];
            let copies = outputs.map(|(kind, mut from)| {
                let stream = Arc::clone(stream);
                thread::spawn(move || {
                    let mut part = [0; 4096];
                    while let Ok(n @ 1..) = from.read(&mut part) {
                        if stream.packet(kind, &part[..n]).is_err() {
                            break;
                        }
                    }
                })
            });
            let mut stdin = child.stdin.take();
            thread::spawn(move || {
                while let Some(kind) = incoming.take(1) {
                    let Some(data) = incoming.number().and_then(|n| incoming.take(n)) else {
                        break;
                    };
                    match (kind[0], &mut stdin) {
                        // The command may have ended.
                        (STDIN, Some(stdin)) => drop(stdin.write_all(&data)),
                        (CLOSE_STDIN, _) => drop(stdin.take()),
                        _ => {}
                    }
                }
            });
            let status = child.wait()?;
            for copy in copies {
                copy.join().unwrap();
            }
            use std::os::unix::process::ExitStatusExt;
            let code = status.code().or_else(|| status.signal().map(|n| 128 + n));
            stream.packet(EXIT, &[u8::try_from(code.unwrap()).unwrap()])
        }
    }
}

/// Serves the push of files.
fn sync(stream: &Stream, incoming: &mut Incoming, shared: &Shared) -> io::Result<()> {
    let mut room = shared.script.room;
    while let (Some(id), Some(length)) = (incoming.take(4), incoming.number()) {
        let name = incoming.take(length).unwrap_or_default();
        let name = String::from_utf8(name).unwrap();
        match &id[..] {
            b"QUIT" => break,
            // No such file.
            b"STAT" => stream.write(&[b"STAT".as_slice(), &[0; 12]].concat())?,
            b"SEND" => {
                let (path, _mode) = name.rsplit_once(',').unwrap();
                let mut file = Vec::new();
                loop {
                    let (id, n) = (incoming.take(4), incoming.number());
                    match (id.as_deref(), n) {
                        (Some(b"DATA"), Some(n)) => file.extend(incoming.take(n).unwrap()),
                        (Some(b"DONE"), Some(_)) => break,
                        _ => return Ok(()),
                    }
                }
                let is_ours = without_folder(path).starts_with("DIR/");
                if !is_ours {
                    shared.refused.lock().unwrap().push(path.to_owned());
                }
                let here = path.replace(FOLDER, &shared.folder.display().to_string());
                let written = match room.checked_sub(file.len()).filter(|_| is_ours) {
                    Some(left) => {
                        room = left;
                        fs::write(here, file).map_err(|error| error.to_string())
                    }
                    None => Err("couldn't write: No space left on device".to_owned()),
                };
                match written {
                    Ok(()) => stream.write(&[b"OKAY".as_slice(), &[0; 4]].concat())?,
                    Err(why) => {
                        let length = u32::try_from(why.len()).unwrap().to_le_bytes();
                        stream.write(&[b"FAIL".as_slice(), &length, why.as_bytes()].concat())?;
                    }
                }
            }
            _ => shared
                .refused
                .lock()
                .unwrap()
                .push(format!("{id:?} {name}")),
        }
    }
    Ok(())
}
