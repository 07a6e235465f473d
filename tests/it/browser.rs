//! A real Chromium over its debugging pipe, and the checks of each page in it.

use std::{
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use epwatch_runtimes::{axe, is_installed, not_installed};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Chromium's command on Debian and on other systems.
const COMMANDS: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];
const FLAGS: &str = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-sync \
    --disable-extensions --disable-background-networking --disable-component-update --disable-default-apps \
    --remote-debugging-pipe about:blank";
/// Longest time for one page at one width in one scheme; after it a hanging browser is killed.
const MOST_TIME: Duration = Duration::from_secs(120);
/// A phone, and a wide screen.
const WIDTHS: [u32; 2] = [390, 1_280];
/// Widths of a phone, a tablet, laptops and large screens. No table is cut at these.
const TABLE_WIDTHS: [u32; 6] = [390, 768, 1_024, 1_280, 1_440, 1_920];
const SCHEMES: [&str; 2] = ["light", "dark"];
/// Maximum number of presses of the Tab key until every control had the focus.
const MOST_TABS: usize = 600;

/// The innermost parts that make a page wider than its screen, without parts that scroll by themselves.
const TOO_WIDE: &str = "(() => { const root = document.documentElement; \
    if (root.scrollWidth <= root.clientWidth) return ''; \
    const wide = [...document.querySelectorAll('body *')].filter(part => \
        !part.parentElement.closest('.scroll') && \
        part.getBoundingClientRect().right > root.clientWidth + 0.5); \
    return wide.map(part => part.tagName + '.' + part.getAttribute('class') + ' ' + \
        Math.round(part.getBoundingClientRect().right) + ' ' + part.textContent.trim().slice(0, 40)).join('\\n') || 'something'; })()";

/// Tables that scroll sideways.
const SCROLLS: &str = "[...document.querySelectorAll('.scroll:has(> table)')].filter(part => part.scrollWidth > \
    part.clientWidth).map(part => part.getAttribute('aria-label') + ' ' + part.scrollWidth).join()";

pub(crate) struct Browser {
    child: Arc<Mutex<Child>>,
    to: File,
    from: BufReader<File>,
    next_id: u64,
    session: Option<String>,
    events: Vec<Value>,
    /// Tells the watchdog whether a page is being checked. The watchdog ends when this is dropped.
    at_work: mpsc::Sender<bool>,
    _dir: TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Browser {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let made = Command::new("mkfifo")
            .args([path("to"), path("from")])
            .status();
        assert!(made.unwrap().success());
        let found = COMMANDS.iter().find(|name| is_installed(name));
        let command = found.unwrap_or_else(|| panic!("{}", not_installed(COMMANDS[0])));
        let script =
            format!("exec {command} --user-data-dir=profile {FLAGS} 3<to 4>from >log 2>&1");
        let child = Command::new("sh")
            .args(["-c", &script])
            .current_dir(dir.path())
            .env("HOME", dir.path())
            .spawn()
            .unwrap();
        let child = Arc::new(Mutex::new(child));
        let (at_work, said) = mpsc::channel();
        let watched = Arc::clone(&child);
        thread::spawn(move || {
            let mut is_at_work = true;
            loop {
                let next = match is_at_work {
                    true => said.recv_timeout(MOST_TIME),
                    false => said.recv().map_err(Into::into),
                };
                match next {
                    Ok(now) => is_at_work = now,
                    Err(mpsc::RecvTimeoutError::Disconnected) => return,
                    Err(mpsc::RecvTimeoutError::Timeout) => {
                        let _ = watched.lock().unwrap().kill();
                        return;
                    }
                }
            }
        });
        // Opening each pipe waits until the other side opens it, too.
        let to = OpenOptions::new().write(true).open(path("to")).unwrap();
        let from = BufReader::new(File::open(path("from")).unwrap());
        let mut browser = Self {
            child,
            to,
            from,
            next_id: 0,
            session: None,
            events: Vec::new(),
            at_work,
            _dir: dir,
        };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", &attach);
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Network", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser.at_work.send(false).unwrap();
        browser
    }

    /// Opens each page at the widths and in both schemes. `name` is the name of its picture in `target/screenshots`.
    #[track_caller]
    pub(crate) fn check(&mut self, base: &str, name: &str, path: &str) {
        self.check_answer(base, (name, path, None), 200);
    }

    /// Works like [`Self::check`], for a page that is answered with this status. A given script runs in the page at the
    /// path, and the page that it leads to is checked.
    #[track_caller]
    pub(crate) fn check_answer(
        &mut self,
        base: &str,
        (name, path, script): (&str, &str, Option<&str>),
        status: u64,
    ) {
        for width in WIDTHS {
            for scheme in SCHEMES {
                let shown = format!("{name} at {width} px, {scheme}, {path}");
                self.set_screen(width, scheme, "screen");
                self.open(&format!("{base}{path}"));
                if let Some(script) = script {
                    self.events.clear();
                    // With the timeout, the answer arrives before the page is left.
                    self.evaluate(&format!("setTimeout(() => {{ {script} }}, 0); 0"));
                    self.wait_for_load();
                }
                self.check_events(base, &shown, status);
                let height = self.evaluate("document.documentElement.scrollHeight");
                self.picture(&format!("{name}-{width}-{scheme}"), width, &height);
                assert_eq!(self.evaluate(TOO_WIDE), "", "{shown} is too wide");
                // Contrast depends on the scheme, and the order of parts on the width, so each is checked once.
                match (width, scheme) {
                    (390, "dark") => self.check_axe(&shown),
                    (1_280, "light") => {
                        self.check_axe(&shown);
                        self.check_keyboard(&shown);
                        self.check_tables(&shown);
                    }
                    _ => {}
                }
                self.at_work.send(false).unwrap();
            }
        }
    }

    /// Checks that no screen width cuts a column.
    #[track_caller]
    fn check_tables(&mut self, shown: &str) {
        for width in TABLE_WIDTHS {
            self.set_screen(width, "light", "screen");
            for rule in [TOO_WIDE, SCROLLS] {
                assert_eq!(self.evaluate(rule), "", "{shown}, then at {width} px");
            }
        }
    }

    /// Lays a page out for A4 paper, and checks that nothing is cut and that it has no controls.
    #[track_caller]
    pub(crate) fn check_print(&mut self, base: &str, name: &str, path: &str) {
        const PAPER: u32 = 720;
        self.set_screen(PAPER, "light", "print");
        self.open(&format!("{base}{path}"));
        let height = self.evaluate("document.documentElement.scrollHeight");
        self.picture(&format!("{name}-print"), PAPER, &height);
        let controls = "[...document.querySelectorAll('nav, form, button')].filter(part => part.checkVisibility()).length";
        assert_eq!(self.evaluate(controls), 0, "{name}");
        let cut = "[...document.querySelectorAll('.scroll')].filter(part => part.firstElementChild.getBoundingClientRect().right \
            > document.documentElement.clientWidth + 0.5).map(part => part.getAttribute('aria-label')).join()";
        assert_eq!(self.evaluate(cut), "", "{name} is cut");
        self.at_work.send(false).unwrap();
    }

    /// Presents a cookie from now on.
    pub(crate) fn set_cookie(&mut self, url: &str, cookie: &str) {
        let (name, value) = cookie.split_once('=').unwrap();
        let set = json!({"url": url, "name": name, "value": value});
        self.call("Network.setCookie", &set);
    }

    fn open(&mut self, url: &str) {
        self.at_work.send(true).unwrap();
        self.events.clear();
        let opened = self.call("Page.navigate", &json!({"url": url}));
        assert_eq!(opened["errorText"], Value::Null, "{url}");
        self.wait_for_load();
    }

    fn wait_for_load(&mut self) {
        while !self.has("Page.loadEventFired") {
            let event = self.read();
            self.events.push(event);
        }
    }

    fn has(&self, method: &str) -> bool {
        self.events.iter().any(|event| event["method"] == method)
    }

    /// Checks that no request goes elsewhere, every resource is found, the page has its status, and the console has no
    /// complaint.
    #[track_caller]
    fn check_events(&self, base: &str, shown: &str, expected: u64) {
        for event in &self.events {
            let params = &event["params"];
            match event["method"].as_str().unwrap_or_default() {
                "Network.requestWillBeSent" => {
                    let url = params["request"]["url"].as_str().unwrap();
                    assert!(
                        url.starts_with(base) || url.starts_with("data:"),
                        "{shown}: {url}"
                    );
                }
                "Network.responseReceived" => {
                    let status = params["response"]["status"].as_u64().unwrap();
                    let is_it = match params["type"] == "Document" {
                        true => status == expected,
                        false => status < 400,
                    };
                    assert!(is_it, "{shown}: {params}");
                }
                // This is only a recommendation: Chromium prefers a user name next to a token.
                "Log.entryAdded" if params["entry"]["level"] == "verbose" => {}
                "Log.entryAdded" if expected >= 400 && params["entry"]["source"] == "network" => {
                    let text = params["entry"]["text"].as_str().unwrap_or_default();
                    assert!(text.contains(&expected.to_string()), "{shown}: {params}");
                }
                "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded" => {
                    panic!("{shown}: {params}");
                }
                _ => {}
            }
        }
    }

    #[track_caller]
    fn check_axe(&mut self, shown: &str) {
        let source = fs::read_to_string(axe()).unwrap();
        self.evaluate(&source);
        let found = self.evaluate(
            "axe.run(document, {preload: false}).then(found => JSON.stringify(found.violations.map(rule => \
             rule.id + ': ' + rule.nodes.slice(0, 3).map(node => node.html + ' ' + node.failureSummary).join('; '))))",
        );
        assert_eq!(found, "[]", "{shown}");
    }

    /// Checks that the Tab key reaches every link and control.
    #[track_caller]
    fn check_keyboard(&mut self, shown: &str) {
        let all = self.evaluate(
            "window.left = new Set([...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, \
             summary, [tabindex]')].filter(part => part.checkVisibility() && !part.disabled && part.tabIndex >= 0)); left.size",
        );
        let mut left = all.as_u64().unwrap();
        for _ in 0..MOST_TABS {
            if left == 0 {
                return;
            }
            for kind in ["rawKeyDown", "keyUp"] {
                let key =
                    json!({"type": kind, "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9});
                self.call("Input.dispatchKeyEvent", &key);
            }
            let rest = self.evaluate("left.delete(document.activeElement); left.size");
            left = rest.as_u64().unwrap();
        }
        let first = self.evaluate("[...left][0].outerHTML");
        panic!("{shown}: the Tab key does not reach {left} of {all} parts, first {first}");
    }

    /// Takes a picture of the upper part of a page on a wide screen.
    pub(crate) fn upper_part(&mut self, url: &str, name: &str, height: u32) {
        self.set_screen(1_280, "light", "screen");
        self.open(url);
        self.picture(name, 1_280, &height.into());
        self.at_work.send(false).unwrap();
    }

    /// Takes a picture of a whole page on a wide screen. Its scripts must not log errors.
    pub(crate) fn whole_page(&mut self, url: &str, name: &str) {
        self.set_screen(1_280, "light", "screen");
        self.open(url);
        let thrown = self
            .events
            .iter()
            .find(|event| event["method"] == "Runtime.exceptionThrown");
        assert!(thrown.is_none(), "{name}: {thrown:?}");
        let height = self.evaluate("document.documentElement.scrollHeight");
        self.picture(name, 1_280, &height);
        self.at_work.send(false).unwrap();
    }

    fn set_screen(&mut self, width: u32, scheme: &str, media: &str) {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", &size);
        let media = json!({"media": media, "features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", &media);
    }

    fn picture(&mut self, name: &str, width: u32, height: &Value) {
        let clip = json!({"x": 0, "y": 0, "width": width, "height": height, "scale": 1});
        let options = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let taken = self.call("Page.captureScreenshot", &options);
        let png = STANDARD.decode(taken["data"].as_str().unwrap()).unwrap();
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/target/screenshots"));
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(name).with_extension("png"), png).unwrap();
    }

    #[track_caller]
    fn evaluate(&mut self, script: &str) -> Value {
        let what = json!({"expression": script, "awaitPromise": true, "returnByValue": true});
        let mut found = self.call("Runtime.evaluate", &what);
        assert_eq!(found["exceptionDetails"], Value::Null);
        found["result"]["value"].take()
    }

    #[track_caller]
    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.next_id += 1;
        let mut message = json!({"id": self.next_id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        loop {
            let mut answer = self.read();
            if answer["id"] == self.next_id {
                assert_eq!(answer["error"], Value::Null, "{method}");
                return answer["result"].take();
            }
            self.events.push(answer);
        }
    }

    fn read(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).unwrap();
        assert_eq!(bytes.pop(), Some(0), "Chromium ended");
        serde_json::from_slice(&bytes).unwrap()
    }
}
