//! A proxy before the store, which tests open and close. While it is closed, the store is away. While it is open, it
//! forwards bytes. It can also hold one statement until the test releases it, or change statements of one kind.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Mutex, oneshot, watch};
use tokio::task::JoinHandle;

use epwatch_collector::Client;
use epwatch_collector::schema::DATABASE;
use epwatch_store::StoreTarget;

type Choice = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// A statement that was held back; it goes on when this is dropped.
pub(crate) type Held = oneshot::Sender<()>;

/// The statement to hold back, once, and the receiver of that event.
struct Hold {
    is_it: Choice,
    tell: oneshot::Sender<Held>,
}

/// In statements that contain `when`, `from` is replaced by `to`, which has the same length.
#[derive(Clone, Copy)]
pub(crate) struct Change {
    pub(crate) when: &'static str,
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
}

impl Change {
    /// Changes a piece of a request.
    fn apply(&self, bytes: &mut [u8]) {
        let is_at = |bytes: &[u8], text: &str| {
            let mut windows = bytes.windows(text.len());
            windows.position(|window| window == text.as_bytes())
        };
        if is_at(bytes, self.when).is_some()
            && let Some(at) = is_at(bytes, self.from)
        {
            bytes[at..at + self.to.len()].copy_from_slice(self.to.as_bytes());
        }
    }
}

/// The effect of a gate's connections on statements.
#[derive(Default)]
struct Control {
    hold: Mutex<Option<Hold>>,
    change: Mutex<Option<Change>>,
}

/// The proxy in front of the store's socket. It stops with the test.
pub(crate) struct Gate {
    address: SocketAddr,
    is_open: watch::Sender<bool>,
    control: Arc<Control>,
    accepting: JoinHandle<()>,
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Gate {
    pub(crate) async fn before(socket: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let is_open = watch::Sender::new(false);
        let control = Arc::<Control>::default();
        let (opened, of_connections) = (is_open.subscribe(), control.clone());
        let accepting = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                if *opened.borrow() {
                    tokio::spawn(pass(stream, socket.clone(), of_connections.clone()));
                }
            }
        });
        Self {
            address,
            is_open,
            control,
            accepting,
        }
    }

    pub(crate) fn client(&self) -> Client {
        let address = format!("http://{}", self.address);
        epwatch_store::client(&StoreTarget::parse(&address, DATABASE).unwrap())
    }

    pub(crate) fn open(&self) {
        self.is_open.send_replace(true);
    }

    /// Changes statements from now on.
    pub(crate) async fn change(&self, change: Change) {
        assert_eq!(change.from.len(), change.to.len());
        *self.control.change.lock().await = Some(change);
    }

    /// Holds back the first request whose bytes match `is_it`; resolves when this request arrives.
    pub(crate) async fn hold_back(
        &self,
        is_it: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> oneshot::Receiver<Held> {
        let (tell, told) = oneshot::channel();
        *self.control.hold.lock().await = Some(Hold {
            is_it: Box::new(is_it),
            tell,
        });
        told
    }
}

/// Forwards one connection in both directions.
async fn pass(client: TcpStream, socket: PathBuf, control: Arc<Control>) {
    let Ok(store) = UnixStream::connect(socket).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_store, mut to_store) = store.into_split();
    let answers = tokio::spawn(async move {
        let _ = tokio::io::copy(&mut from_store, &mut to_client).await;
    });
    let mut buffer = vec![0; 64 << 10];
    // A statement may come in two pieces, so the end of the bytes passed on last is searched again.
    let mut seen = String::new();
    while let Ok(n @ 1..) = from_client.read(&mut buffer).await {
        seen.push_str(&String::from_utf8_lossy(&buffer[..n]));
        let hit = {
            let mut hold = control.hold.lock().await;
            hold.take_if(|hold| (hold.is_it)(&seen))
        };
        if let Some(hold) = hit {
            let (held, go_on) = oneshot::channel();
            let _ = hold.tell.send(held);
            let _ = go_on.await;
        }
        let keep = seen.len().saturating_sub(4 << 10);
        seen = seen.split_off(seen.ceil_char_boundary(keep));
        if let Some(change) = *control.change.lock().await {
            change.apply(&mut buffer[..n]);
        }
        if to_store.write_all(&buffer[..n]).await.is_err() {
            break;
        }
    }
    answers.abort();
}
