//! The parameters of a request in ClickHouse's HTTP protocol: URL pairs and form fields.
//!
//! A name is one of the protocol's own, or `param_<name>` for a query parameter, or a setting. No state outlives a
//! request, so a session is refused. Readers may name a session, because their statements leave no state in it.

/// Longest query text, and longest form that contains one.
pub(crate) const MAX_QUERY_BYTES: usize = 1 << 20;

/// Maximum number of settings of one request, and of its query parameters.
const MAX_PAIRS: usize = 1_000;

/// Names of the protocol that are accepted and ignored. They are hints for the form of the answer, and the user's name.
/// A socket's mode or a reader's password controls the access, not the user's name.
const IGNORED: &[&str] = &[
    "add_http_cors_header",
    "buffer_size",
    "cancel_http_readonly_queries_on_client_close",
    "enable_http_compression",
    "http_headers_progress_interval_ms",
    "http_response_buffer_size",
    "http_write_exception_in_output_format",
    "http_zlib_compression_level",
    "quota_key",
    "role",
    "send_progress_in_http_headers",
    "stacktrace",
    "user",
    "wait_end_of_query",
];

/// Names of the protocol that request a session.
const SESSION: &[&str] = &["session_check", "session_id", "session_timeout"];

/// Why a request's parameters are refused; the text carries ClickHouse's code.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestError {
    #[error(
        "Code: 48. DB::Exception: the parameter {0} is not supported by the embedded engine. \
         (NOT_IMPLEMENTED)"
    )]
    Unsupported(String),
    #[error(
        "Code: 115. DB::Exception: setting name {0:?} may hold only letters, digits and \
         underscores. (UNKNOWN_SETTING)"
    )]
    SettingName(String),
    #[error(
        "Code: 36. DB::Exception: client_protocol_version is {0:?}, expected a whole number. \
         (BAD_ARGUMENTS)"
    )]
    ProtocolVersion(String),
    #[error("Code: 36. DB::Exception: more than {MAX_PAIRS} parameters. (BAD_ARGUMENTS)")]
    TooMany,
    #[error("Code: 36. DB::Exception: the form is broken: {0}. (BAD_ARGUMENTS)")]
    Form(&'static str),
    #[error(
        "Code: 36. DB::Exception: the query is not UTF-8; send rows in the body and the INSERT \
         in the URL. (BAD_ARGUMENTS)"
    )]
    NotUtf8,
    #[error(
        "Code: 229. DB::Exception: the query is longer than {MAX_QUERY_BYTES} bytes; rows may \
         be longer, if the INSERT stands in the URL and they in the body. (QUERY_IS_TOO_LARGE)"
    )]
    TooLarge,
}

/// A request without its body.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) query: String,
    pub(crate) database: Option<String>,
    pub(crate) default_format: Option<String>,
    pub(crate) query_id: Option<String>,
    pub(crate) decompress: bool,
    /// Password of a reader; requests on the socket need none.
    pub(crate) password: Option<String>,
    /// Revision of Native blocks that the client expects; 0 is the revision that the engine writes.
    pub(crate) protocol_version: u64,
    /// Name of the requested session.
    pub(crate) session: Option<String>,
    pub(crate) query_params: Vec<(String, String)>,
    pub(crate) settings: Vec<(String, String)>,
}

impl Parameters {
    /// Reads the pairs of a URL's query part.
    pub(crate) fn from_url(query: &str) -> Result<Parameters, RequestError> {
        let mut parameters = Parameters::default();
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            parameters.put(&name, value.into_owned())?;
        }
        Ok(parameters)
    }

    /// Refuses a request for a session.
    pub(crate) fn check_no_session(&self) -> Result<(), RequestError> {
        match &self.session {
            Some(name) => Err(RequestError::Unsupported(name.clone())),
            None => Ok(()),
        }
    }

    /// Adds one pair.
    pub(crate) fn put(&mut self, name: &str, value: String) -> Result<(), RequestError> {
        if self.settings.len() + self.query_params.len() >= MAX_PAIRS {
            return Err(RequestError::TooMany);
        }
        match name {
            "query" => self.query.push_str(&value),
            "database" => self.database = Some(value).filter(|name| !name.is_empty()),
            "default_format" => self.default_format = Some(value),
            "query_id" => self.query_id = Some(value).filter(|id| is_header_text(id)),
            "decompress" => self.decompress = is_on(&value),
            "password" => self.password = Some(value),
            "client_protocol_version" => {
                self.protocol_version = value
                    .parse()
                    .map_err(|_| RequestError::ProtocolVersion(value))?;
            }
            _ if IGNORED.contains(&name) => {}
            _ if SESSION.contains(&name) => self.session = Some(name.to_owned()),
            // The parameter must not be accepted, because the answer would not be compressed.
            "compress" if is_on(&value) => {
                return Err(RequestError::Unsupported(name.to_owned()));
            }
            "compress" => {}
            _ => match name.strip_prefix("param_") {
                Some(name) => self.query_params.push((name.to_owned(), value)),
                None if is_setting_name(name) => self.settings.push((name.to_owned(), value)),
                None => return Err(RequestError::SettingName(name.to_owned())),
            },
        }
        Ok(())
    }

    /// Adds the fields of a `multipart/form-data` body, with which the client sends queries with parameters.
    pub(crate) fn put_form(&mut self, body: &str, boundary: &str) -> Result<(), RequestError> {
        let marker = format!("--{boundary}");
        let mut rest = body
            .strip_prefix(&marker)
            .ok_or(RequestError::Form("it does not begin with its boundary"))?;
        let separator = format!("\r\n{marker}");
        while let Some(part) = rest.strip_prefix("\r\n") {
            let (head, after) = part
                .split_once("\r\n\r\n")
                .ok_or(RequestError::Form("a field without a head"))?;
            let name = field_name(head).ok_or(RequestError::Form("a field without a name"))?;
            let (value, after) = after
                .split_once(&separator)
                .ok_or(RequestError::Form("a field without an end"))?;
            self.put(name, value.to_owned())?;
            rest = after;
        }
        match rest.starts_with("--") {
            true => Ok(()),
            false => Err(RequestError::Form("it does not end with its boundary")),
        }
    }
}

/// Returns the boundary of a `multipart/form-data` content type.
pub(crate) fn form_boundary(content_type: &str) -> Option<&str> {
    let rest = content_type.strip_prefix("multipart/form-data")?;
    let (_, boundary) = rest.split_once("boundary=")?;
    let boundary = boundary.split(';').next()?.trim().trim_matches('"');
    (!boundary.is_empty()).then_some(boundary)
}

fn field_name(head: &str) -> Option<&str> {
    let line = head.lines().find(|line| {
        let name = line.split(':').next().unwrap_or_default();
        name.eq_ignore_ascii_case("content-disposition")
    })?;
    let (_, name) = line.split_once("name=\"")?;
    name.split('"').next()
}

fn is_on(value: &str) -> bool {
    matches!(value, "1" | "true")
}

fn is_setting_name(name: &str) -> bool {
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !name.is_empty() && name.len() <= 128 && name.bytes().all(is_name_byte)
}

fn is_header_text(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_sorted_into_their_kinds() {
        let url = "query=SELECT+1&database=d&default_format=RowBinary&decompress=1&param_a=x%26y\
                   &max_threads=2&user=u&password=p&compress=0&query_id=q1\
                   &client_protocol_version=54460";
        let found = Parameters::from_url(url).unwrap();
        let expected = Parameters {
            query: "SELECT 1".into(),
            database: Some("d".into()),
            default_format: Some("RowBinary".into()),
            query_id: Some("q1".into()),
            decompress: true,
            query_params: vec![("a".into(), "x&y".into())],
            settings: vec![("max_threads".into(), "2".into())],
            password: Some("p".into()),
            protocol_version: 54_460,
            session: None,
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_not_offered_is_refused() {
        let refused = Parameters::from_url("compress=1");
        assert_eq!(refused, Err(RequestError::Unsupported("compress".into())));
        let session = Parameters::from_url("session_id=1").unwrap();
        let refused = Err(RequestError::Unsupported("session_id".into()));
        assert_eq!(session.check_no_session(), refused);
        let refused = Parameters::from_url("client_protocol_version=new");
        assert_eq!(refused, Err(RequestError::ProtocolVersion("new".into())));
        for name in ["a b", "a'--", "x=y".repeat(99).as_str(), "a,readonly"] {
            let refused = Parameters::default().put(name, "1".into());
            assert_eq!(refused, Err(RequestError::SettingName(name.into())));
        }
        let many: String = (0..1001).map(|i| format!("a{i}=1&")).collect();
        assert_eq!(Parameters::from_url(&many), Err(RequestError::TooMany));
    }

    #[test]
    fn form_fields_keep_their_bytes() {
        let body = "--B\r\nContent-Disposition: form-data; name=\"query\"\r\n\r\nSELECT {a: String}\
                    \r\n--B\r\ncontent-disposition: form-data; name=\"param_a\"\r\n\r\nline\r\n--C\r\n\
                    \r\n--B--\r\n";
        let mut found = Parameters::default();
        found.put_form(body, "B").unwrap();
        assert_eq!(found.query, "SELECT {a: String}");
        assert_eq!(
            found.query_params,
            [("a".to_owned(), "line\r\n--C\r\n".to_owned())]
        );
        assert_eq!(
            form_boundary("multipart/form-data; boundary=\"B\""),
            Some("B")
        );
        assert_eq!(form_boundary("text/plain; boundary=B"), None);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_form_or_is_refused(body in "(--B|\r\n|: |name=\"|form-data|\\PC){0,30}") {
            let _ = Parameters::default().put_form(&body, "B");
            let _ = Parameters::from_url(&body);
        }
    }

    #[test]
    fn torn_forms_are_refused() {
        let whole =
            "--B\r\nContent-Disposition: form-data; name=\"query\"\r\n\r\nSELECT 1\r\n--B--";
        for cut in 0..whole.len() {
            let torn = Parameters::default().put_form(&whole[..cut], "B");
            assert!(torn.is_err(), "{:?}", &whole[..cut]);
        }
        Parameters::default().put_form(whole, "B").unwrap();
    }
}
