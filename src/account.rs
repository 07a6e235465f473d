//! Names of the machine's users, for orders and for errors about folders of another user.

use std::{env, fs};

/// Returns the name of the person at the shell. Under `sudo` a variable names the person; in a container or a timer no
/// variable may be set.
pub(crate) fn own_name() -> Option<String> {
    let set = |name| env::var(name).ok().filter(|value| !value.is_empty());
    let named = ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(set);
    named.or_else(|| {
        let accounts = fs::read_to_string("/etc/passwd").ok()?;
        account_of(&accounts, rustix::process::geteuid().as_raw())
    })
}

/// Returns a user's name from the lines of `/etc/passwd`, which have name, password, number and more.
pub(crate) fn account_of(accounts: &str, user: u32) -> Option<String> {
    let mut lines = accounts.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| {
        let name = fields.next()?;
        let number: u32 = fields.nth(1)?.parse().ok()?;
        (number == user).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_variables_has_the_name_of_the_account() {
        let accounts =
            "root:x:0:0:root:/root:/bin/bash\nbroken\nalice:x:1000:1000::/home/alice:/bin/sh\n";
        assert_eq!(account_of(accounts, 1000).as_deref(), Some("alice"));
        assert_eq!(account_of(accounts, 0).as_deref(), Some("root"));
        assert_eq!(account_of(accounts, 65534), None);
    }
}
