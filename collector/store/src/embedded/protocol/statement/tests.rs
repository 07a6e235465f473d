use super::*;

#[track_caller]
fn check_rows(sql: &str, head: &str, format: &str, data: &str) {
    match read(sql) {
        Ok(Kind::InsertRows {
            head: found_head,
            format: found_format,
            data_at,
        }) => {
            assert_eq!(found_head, head);
            assert_eq!(found_format, format);
            assert_eq!(&sql[data_at..], data);
        }
        other => panic!("{sql}: {other:?}"),
    }
}

#[track_caller]
fn check_kind(sql: &str, expected: Kind) {
    assert_eq!(read(sql), Ok(expected), "{sql}");
}

fn names() -> OutsideNames {
    OutsideNames::new(
        [
            "file",
            "url",
            "s3",
            "executable",
            "numbers",
            "format",
            "input",
        ]
        .into_iter(),
        ["File", "URL", "MergeTree", "Memory", "Filesystem", "Atomic"].into_iter(),
    )
}

#[track_caller]
fn check_refused(sql: &str, what: &str) {
    match names().check(sql) {
        Err(StatementRefusal::OutsideStore(found)) => assert_eq!(found, what, "{sql}"),
        other => panic!("{sql}: {other:?}"),
    }
}

#[test]
fn select_is_known_through_comments_and_brackets() {
    check_kind(" -- x\n select 1", Kind::Select);
    check_kind("/* c */ (select 1)", Kind::Select);
    check_kind("with 1 as x select x;", Kind::Select);
    check_kind("SHOW TABLES", Kind::Whole);
}

#[test]
fn rows_are_parted_from_the_insert() {
    let quoted = "INSERT INTO t(`a`,\"b\")";
    check_rows(
        &format!("{quoted} FORMAT RowBinary"),
        quoted,
        "RowBinary",
        "",
    );
    check_rows(
        "INSERT INTO t FORMAT CSV\r\n1,2",
        "INSERT INTO t",
        "CSV",
        "1,2",
    );
    check_rows(
        "insert into `format`.`select` (a, `FORMAT`) settings x='FORMAT y' format  TSV\n\n\nDROP",
        "insert into `format`.`select` (a, `FORMAT`) settings x='FORMAT y'",
        "TSV",
        "\n\nDROP",
    );
    check_rows(
        "insert into t (a) values ('x\n\nDROP TABLE t')",
        "insert into t (a)",
        "Values",
        " ('x\n\nDROP TABLE t')",
    );
}

#[test]
fn insert_without_rows_or_select_is_refused() {
    assert_eq!(read("INSERT INTO t"), Err(StatementRefusal::UnclearInsert));
    assert_eq!(
        read("INSERT INTO t FORMAT"),
        Err(StatementRefusal::UnclearInsert)
    );
    let input = "INSERT INTO t SELECT * FROM input('a String') FORMAT CSV\n1";
    assert_eq!(read(input), Err(StatementRefusal::UnclearInsert));
    check_kind("INSERT INTO t (a) SELECT 1", Kind::Whole);
}

#[test]
fn several_statements_are_refused() {
    for sql in [
        "SELECT 1; DROP TABLE t",
        "SELECT 1;;SELECT 2",
        "INSERT INTO t; DROP TABLE t; FORMAT CSV",
    ] {
        assert_eq!(read(sql), Err(StatementRefusal::SeveralStatements), "{sql}");
    }
    check_kind("SELECT ';DROP' ; -- end", Kind::Select);
    assert_eq!(read(" /* nothing */ "), Err(StatementRefusal::Empty));
}

#[test]
fn files_are_refused_in_any_spelling() {
    check_refused("SELECT 1 INTO OUTFILE 'x'", "INTO OUTFILE");
    check_refused("SELECT 1 into/* c */\n--c\noutFile 'x'", "INTO OUTFILE");
    check_refused("INSERT INTO t FROM INFILE 'x' FORMAT CSV", "FROM INFILE");
    check_refused("SELECT * FROM file('x')", "the function file");
    check_refused("SELECT FILE /* c */ ('x')", "the function file");
    check_refused("SELECT * FROM `file`('x')", "the function file");
    check_refused("SELECT * FROM \"url\"('x')", "the function url");
    check_refused(
        "CREATE TABLE f (a String) ENGINE=File(CSV)",
        "the engine file",
    );
    check_refused(
        "CREATE TABLE f (a String) engine `URL`('x')",
        "the engine url",
    );
    check_refused(
        "CREATE DATABASE d ENGINE = Filesystem('/')",
        "the engine filesystem",
    );
    check_refused(
        "CREATE TABLE t SETTINGS disk = disk(type='local')",
        "the function disk",
    );
    check_refused(
        "CREATE DICTIONARY d (a UInt8) PRIMARY KEY a SOURCE(EXECUTABLE(command 'id'))",
        "the source EXECUTABLE",
    );
}

/// Each text hides the call from a check that reads quotes, comments or blanks in another way than the engine.
#[test]
fn calls_cannot_hide_between_quotes() {
    check_refused("SELECT $$'$$, file('x'), $$'$$", "the function file");
    check_refused("SELECT /* /* */ ' */ file('x') -- '", "the function file");
    check_refused("SELECT * FROM file\x0b('x')", "the function file");
    for sql in [
        "SELECT '' AS \u{2018}'\u{2019}, file('x'), ''",
        "SELECT * FROM file\u{a0}('x')",
        "SELECT * FROM file\0('x')",
    ] {
        assert_eq!(names().check(sql), Err(StatementRefusal::Foreign), "{sql}");
    }
}

#[test]
fn harmless_words_pass() {
    for sql in [
        "SELECT 'INTO OUTFILE', format('{}', file) FROM numbers(3) -- INTO OUTFILE 'x'",
        "CREATE TABLE t (file String, url String) ENGINE = MergeTree ORDER BY url",
        "SELECT engine FROM system.tables WHERE engine = 'File'",
        "CREATE DICTIONARY d (a UInt8) PRIMARY KEY a SOURCE(CLICKHOUSE(table 't'))",
    ] {
        assert_eq!(names().check(sql), Ok(()), "{sql}");
    }
}

#[test]
fn control_statements_pass_by_allow_list() {
    assert_eq!(check_control("KILL QUERY WHERE 0"), Ok(()));
    assert_eq!(check_control("system flush logs"), Ok(()));
    assert_eq!(
        check_control("SET a = 1"),
        Err(StatementRefusal::Session("SET".into()))
    );
    for sql in [
        "SELECT 1 INTO x",
        "BACKUP TABLE t TO File('b')",
        "ATTACH TABLE t",
    ] {
        assert!(
            matches!(check_control(sql), Err(StatementRefusal::OutsideStore(_))),
            "{sql}"
        );
    }
    let function = "INSERT INTO FUNCTION file('x') SELECT 1";
    assert!(matches!(
        check_control(function),
        Err(StatementRefusal::OutsideStore(_))
    ));
}

#[test]
fn format_clause_is_found() {
    let sql = "select 1 as format, 'FORMAT x' FORMAT JSONEachRow";
    assert_eq!(output_format(sql), Some("JSONEachRow"));
    assert_eq!(output_format("select format('{}', 1)"), None);
    assert_eq!(
        output_format("select 1 FORMAT TSV SETTINGS max_threads = 1"),
        Some("TSV")
    );
}

proptest::proptest! {
    /// For any INSERT, head and rows are separated on a character boundary, and the head has no FORMAT clause left.
    #[test]
    fn any_insert_is_parted_or_refused(
        tail in "( |\n|;|t|\\(|\\)|'|/\\*|\\*/|--|FORMAT|CSV|VALUES|SELECT|\\PC){0,12}",
    ) {
        let sql = format!("INSERT INTO {tail}");
        let _ = names().check(&sql);
        if let Ok(Kind::InsertRows { head, data_at, .. }) = read(&sql) {
            assert!(sql.is_char_boundary(data_at));
            assert!(sql.starts_with(&head));
            assert_eq!(output_format(&head), None);
        }
    }
}
