//! ClickHouse: the client, the migrations runner, and the embedded engine as a child process.
