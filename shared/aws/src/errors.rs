//! What an answer of a service means: for the next try, and for the user. Texts hold addresses and the words of the service,
//! never what a request was signed with.

use crate::address::Address;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use std::error::Error as StdError;
use timelake_model::{Error, Reason};

/// Codes that say: later.
const TRANSIENT_CODES: &[&str] = &[
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "TooManyRequests",
    "InternalError",
    "ServiceUnavailable",
    "RequestTimeout",
    "OperationAborted",
    "ConditionalRequestConflict",
    "503 SlowDown",
    // DynamoDB
    "ProvisionedThroughputExceededException",
    "TransactionConflictException",
    "TransactionInProgressException",
    "InternalServerError",
    // SQS
    "RequestThrottled",
    // Glue
    "InternalServiceException",
    "OperationTimeoutException",
];
/// Credentials that were good once.
const EXPIRED_CODES: [&str; 4] = ["ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"];

/// Credentials that never were good.
const WRONG_CODES: &[&str] = &[
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidToken",
    "UnrecognizedClientException",
    "InvalidClientTokenId",
    "InvalidSignatureException",
];
/// Credentials that may not do this; not every service says it by the status.
const REFUSED_CODES: [&str; 2] = ["AccessDenied", "AccessDeniedException"];
/// What is asked for is not there.
const MISSING_CODES: [&str; 4] =
    ["ResourceNotFoundException", "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", "StateMachineDoesNotExist"];
/// How the SDK says that its chain of providers ended without credentials; it has no type for it.
const NO_CREDENTIALS: [&str; 3] = ["CredentialsNotLoaded", "no providers in chain", "an error occurred while loading credentials"];

const FORBIDDEN_HINT: &str = "these credentials may not do that: check the bucket's policy (the manual lists what is needed); without s3:ListBucket a missing object is refused too";

/// A try that failed.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub status: Option<u16>,
    pub code: Option<String>,
    pub text: String,
    /// Another try may do.
    pub is_transient: bool,
    /// The answer is missing: the request may have been carried out.
    pub is_unclear: bool,
    /// Where the bucket really is.
    pub region: Option<String>,
    pub has_credentials: bool,
}

impl Failure {
    /// A connection that broke, stalled or ended early.
    pub fn of_connection(text: impl Into<String>) -> Failure {
        Failure { status: None, code: None, text: text.into(), is_transient: true, is_unclear: true, region: None, has_credentials: true }
    }

    pub fn is(&self, status: u16) -> bool {
        self.status == Some(status)
    }
    pub fn has_code(&self, code: &str) -> bool {
        self.code.as_deref() == Some(code)
    }
    /// The object (not the bucket) is not there.
    pub fn is_missing(&self) -> bool {
        self.has_code("NoSuchKey") || (self.is(404) && !self.has_code("NoSuchBucket") && !self.has_code("NoSuchUpload"))
    }
    /// The condition of the request does not hold.
    pub fn is_precondition(&self) -> bool {
        self.is(412)
    }

    /// As the user is told; `what`: "read", "written", "listed" ...
    pub fn told(self, address: &Address, what: &str) -> Error {
        let uri = &address.uri;
        let at = |error: Error| error.at(|place| place.file = Some(uri.clone()));
        let code = self.code.as_deref().unwrap_or_default();
        if code == "NoSuchBucket" {
            return at(Error::not_found(Reason::PathNotFound, format!("{uri}: there is no bucket {}", address.bucket))
                .hint("check the name, and the account and endpoint it is in"));
        }
        if self.is_missing() {
            return at(Error::not_found(Reason::PathNotFound, format!("{uri} does not exist")).hint("check bucket and key"));
        }
        let message = format!("{uri} cannot be {what}: {}", self.said());
        if let Some(region) = self.region.as_ref().filter(|_| self.has_credentials && matches!(self.status, Some(301 | 307 | 400 | 403)))
            && !EXPIRED_CODES.contains(&code)
        {
            return at(Error::unavailable(Reason::AccessDenied, message)
                .hint(format!("the bucket is in {region}: set AWS_REGION={region}, then run the same command again")));
        }
        if let Some(error) = self.of_access(uri, what) {
            let forbidden = self.is_forbidden() && !WRONG_CODES.contains(&code) && !EXPIRED_CODES.contains(&code);
            return at(if forbidden { error.hint(FORBIDDEN_HINT) } else { error });
        }
        at(Error::unavailable(Reason::StorageUnavailable, message)
            .hint("check the network, AWS_REGION and the endpoint, then run the same command again; what is done is kept"))
    }

    /// As the user is told about another service than S3; `subject`: "the ledger's table timelake", `what`: "read".
    pub fn told_of(self, subject: &str, what: &str, reason: Reason) -> Error {
        if let Some(error) = self.of_access(subject, what) {
            return error;
        }
        let message = format!("{subject} cannot be {what}: {}", self.said());
        if MISSING_CODES.iter().any(|code| self.has_code(code)) {
            return Error::not_found(Reason::PathNotFound, message).hint("check its name, and the account, region and endpoint it is in");
        }
        if !self.is_transient && matches!(self.status, Some(400..=499)) {
            return Error::internal(message);
        }
        Error::unavailable(reason, message)
            .hint("check the network, AWS_REGION and the endpoint, then run the same command again; what is done is kept")
    }

    fn said(&self) -> String {
        self.code.as_ref().map_or_else(|| self.text.clone(), |code| format!("{code}: {}", self.text))
    }
    fn is_forbidden(&self) -> bool {
        matches!(self.status, Some(401 | 403)) || REFUSED_CODES.iter().any(|code| self.has_code(code))
    }

    /// Whatever is wrong with the credentials.
    fn of_access(&self, subject: &str, what: &str) -> Option<Error> {
        let refused = |message: String, hint: &str| Some(Error::unavailable(Reason::AccessDenied, message).hint(hint));
        if !self.has_credentials {
            let why = NO_CREDENTIALS.iter().filter_map(|words| self.text.split_once(words)).map(|(_, rest)| rest).next_back();
            return refused(
                format!("{subject} cannot be {what}: no AWS credentials were found{}", why.unwrap_or_default()),
                "give them as other AWS tools take them: AWS_PROFILE (after aws sso login), AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role",
            );
        }
        let (code, message) = (self.code.as_deref().unwrap_or_default(), format!("{subject} cannot be {what}: {}", self.said()));
        if EXPIRED_CODES.contains(&code) {
            return refused(message, "the credentials are over: renew them, then run the same command again; what is done is kept");
        }
        if WRONG_CODES.contains(&code) {
            return refused(
                message,
                "access key and secret do not belong together, or are of another account or endpoint: check AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            );
        }
        if self.is_forbidden() {
            return refused(message, "these credentials may not do that: check their policies (the manual lists what is needed)");
        }
        None
    }
}

impl<E: ProvideErrorMetadata + StdError + Send + Sync + 'static> From<SdkError<E>> for Failure {
    fn from(error: SdkError<E>) -> Failure {
        let raw = error.raw_response();
        let status = raw.map(|answer| answer.status().as_u16());
        let region = raw.and_then(|answer| answer.headers().get("x-amz-bucket-region")).map(str::to_string);
        let code = error.code().map(str::to_string);
        // Some errors come after the answer has begun as a success.
        let (by_connection, is_unclear) = match &error {
            SdkError::ServiceError(_) => (false, status.is_some_and(|status| !(300..500).contains(&status))),
            SdkError::ConstructionFailure(_) => (false, false),
            SdkError::DispatchFailure(failure) => (!failure.is_user(), true),
            _ => (true, true),
        };
        let chain = chain(&error);
        let has_credentials = !NO_CREDENTIALS.iter().any(|words| chain.contains(words));
        let by_status = by_connection || matches!(status, Some(408 | 429 | 500 | 502 | 503 | 504 | 509));
        let by_code = code.as_deref().is_some_and(|code| TRANSIENT_CODES.contains(&code));
        let text = match &error {
            SdkError::ServiceError(service) => service.err().message().map_or_else(|| answered(status), str::to_string),
            SdkError::TimeoutError(_) => "it took too long".to_string(),
            _ => chain,
        };
        Failure { status, code, text, is_transient: has_credentials && (by_status || by_code), is_unclear, region, has_credentials }
    }
}

fn answered(status: Option<u16>) -> String {
    status.map_or_else(|| "no answer".to_string(), |status| format!("the answer was status {status}"))
}

/// The texts of an error and its causes, each once.
fn chain(error: &dyn StdError) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut next: Option<&dyn StdError> = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        if !texts.iter().any(|known| known.contains(&text)) {
            texts.push(text);
        }
        next = error.source();
    }
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(status: u16, code: &str) -> Failure {
        Failure { status: Some(status), code: Some(code.into()), text: "no".into(), ..Failure::of_connection("") }
    }

    #[test]
    fn each_answer_says_what_it_is_and_how_to_mend_it() {
        let address = Address::parse("s3://b/k").unwrap();
        let told = |failure: Failure| failure.told(&address, "read");
        assert_eq!(told(failure(404, "NoSuchKey")).reason, Reason::PathNotFound);
        assert!(told(failure(404, "NoSuchBucket")).message.contains("no bucket b"));
        assert_eq!(told(failure(403, "AccessDenied")).reason, Reason::AccessDenied);
        assert!(told(failure(400, "ExpiredToken")).hint.unwrap().contains("renew"));
        let elsewhere = Failure { region: Some("eu-north-1".into()), ..failure(301, "PermanentRedirect") };
        assert!(told(elsewhere).hint.unwrap().contains("AWS_REGION=eu-north-1"));
        assert_eq!(told(failure(503, "SlowDown")).reason, Reason::StorageUnavailable);
        let none = Failure { has_credentials: false, ..Failure::of_connection("") };
        assert!(told(none).hint.unwrap().contains("AWS_PROFILE"));
        let text = "dispatch failure: other: an error occurred while loading credentials: the SSO session has expired";
        let over = told(Failure { has_credentials: false, text: text.into(), ..Failure::of_connection("") });
        assert_eq!(over.message, "s3://b/k cannot be read: no AWS credentials were found: the SSO session has expired");
        assert!(told(failure(403, "InvalidAccessKeyId")).hint.unwrap().contains("another account"));
    }
}
