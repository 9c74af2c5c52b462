//! Whose account an operator means (contract section 2), and how the trail says who it was.
//!
//! What must stay true: the permission is checked first, and its lack tells nothing of what exists.
//! `admin` is of the whole store: whoever has it may name any account in AdminService, and nowhere
//! else. In the trail of an account that is not the operator's own, the operator's account stands
//! beside the subject, and no access file can hold a subject that looks like that.

use tonic::Request;

use crate::{
    api::{
        auth::{self, Permission, Principal},
        caller,
        status::Refused,
    },
    domain::{ids::Account, refusal::Refusal},
};

/// What stands between a subject and its account.
pub const OF_ACCOUNT: &str = " of account ";

/// An account, and who asks about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The one that is meant.
    pub account: Account,
    /// Who, for its audit trail.
    pub subject: String,
}

impl Named {
    /// The account that a request names; the caller's own if it names none.
    ///
    /// # Errors
    /// Those of credentials; PERMISSION_MISSING without `admin`; INVALID_FIELD for a name that no
    /// account can have.
    pub fn by<T>(request: &Request<T>, account: impl Fn(&T) -> &String) -> Result<Named, Refused> {
        let caller = caller(request, Permission::Admin)?;
        Ok(Named::from_caller(&caller, account(request.get_ref()))?)
    }

    /// As [`Named::by`], but whoever has any permission may name its own account; the second says
    /// whether the caller has `admin`.
    ///
    /// # Errors
    /// As [`Named::by`].
    pub fn by_reader<T>(
        request: &Request<T>,
        account: impl Fn(&T) -> &String,
    ) -> Result<(Named, bool), Refused> {
        let caller = auth::principal(request)?;
        let named = account(request.get_ref());
        let is_admin = caller.permissions.contains(&Permission::Admin);
        let is_own = named.is_empty() || named == caller.account.as_str();
        if !is_own || caller.permissions.is_empty() {
            caller.may(Permission::Admin)?;
        }
        Ok((Named::from_caller(&caller, named)?, is_admin))
    }

    fn from_caller(caller: &Principal, named: &str) -> Result<Named, Refusal> {
        if named.is_empty() || named == caller.account.as_str() {
            return Ok(Named { account: caller.account.clone(), subject: caller.subject.clone() });
        }
        let account = Account::parse(named).map_err(Refusal::Invalid)?;
        let subject = format!("{}{OF_ACCOUNT}{}", caller.subject, caller.account.as_str());
        Ok(Named { account, subject })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trail_of_another_account_says_whose_operator_it_was() {
        let caller = Principal {
            account: Account::from_stored("house"),
            subject: "operator".to_owned(),
            permissions: [Permission::Admin].into(),
        };
        for (named, account, subject) in [
            ("", "house", "operator"),
            ("house", "house", "operator"),
            ("guests", "guests", "operator of account house"),
        ] {
            let found = Named::from_caller(&caller, named).expect("a name");
            assert_eq!((found.account.as_str(), found.subject.as_str()), (account, subject));
        }
        let long = "x".repeat(129);
        for wrong in ["a\nb", long.as_str()] {
            let refusal = Named::from_caller(&caller, wrong).expect_err("no name");
            assert_eq!(refusal.reason(), "INVALID_FIELD");
        }
    }
}
