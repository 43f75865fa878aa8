"""Questions of strangers: how a person asks who does not know the code, written beside the real sources.

They name no identifier and repeat no docstring. Each corpus says from where it is; a kind is `code` (answers are
`file suffix:symbol`), `howto` (`file suffix:heading`) or `absent` (the project has no such thing).
"""

from __future__ import annotations

#: Language and where the sources are from.
CORPORA: dict[str, tuple[str, str]] = {
    "fastify": ("JavaScript, whole repository", "npm pack fastify@5.12.8"),
    "jsoup": ("Java, whole repository", "Debian's source package jsoup 1.15.3"),
    "clap": ("Rust, sources", "Debian's source package rust-clap 4.0.32"),
    "maturin": ("Rust, whole repository", "the sdist maturin 1.8.3 on PyPI"),
    "zod": ("TypeScript, with its compiled copies", "npm pack zod@4.6.7"),
}

STRANGERS: dict[str, tuple[tuple[str, str, tuple[str, ...]], ...]] = {
    "fastify": (
        (
            "code",
            "Where does an upload get cut off once the client has sent more bytes than are allowed?",
            ("lib/content-type-parser.js:rawBody", "lib/content-type-parser.js:onData"),
        ),
        (
            "code",
            "What answer do visitors on still-open connections get while the server is already shutting down?",
            ("lib/route.js:routeHandler",),
        ),
        (
            "code",
            "Why does starting on localhost open sockets for both IPv4 and IPv6, and which part does that?",
            ("lib/server.js:multipleBindings",),
        ),
        (
            "code",
            "What is sent back over the wire if someone connects and sends garbage instead of valid HTTP?",
            ("fastify.js:defaultClientErrorHandler",),
        ),
        (
            "code",
            "How does answering HEAD leave out the body and still tell the right length?",
            ("lib/head-route.js:headRouteOnSendHandler",),
        ),
        (
            "code",
            "Where is it refused to load an extension that was made for a different release of the framework?",
            ("lib/plugin-utils.js:checkVersion",),
        ),
        (
            "code",
            "How does it find out the original host and https scheme when a load balancer sits in front?",
            ("lib/request.js:buildRequestWithTrustProxy",),
        ),
        (
            "code",
            "Rules for incoming headers written with capital letters still match; what code sees to that?",
            ("lib/validation.js:lowerCaseHeadersSchema",),
        ),
        (
            "code",
            "What stops me from attaching one shared array to every incoming request by accident?",
            ("lib/decorate.js:checkReferenceType",),
        ),
        (
            "code",
            "An async endpoint finishes without returning anything after the visitor hung up; who avoids answering?",
            ("lib/wrap-thenable.js:wrapThenable",),
        ),
        (
            "code",
            "How are the automatic ids for correlating log lines counted, and when do they start over?",
            ("lib/req-id-gen-factory.js:buildDefaultGenReqId", "lib/req-id-gen-factory.js:defaultGenReqId"),
        ),
        (
            "code",
            "Find the part that turns a fetch-style Response returned by an endpoint into status, headers and body.",
            ("lib/reply.js:onSendEnd",),
        ),
        (
            "howto",
            "My pod's readiness check cannot reach the app, although it works locally. What must I change?",
            ("docs/Guides/Recommendations.md:Kubernetes",),
        ),
        (
            "howto",
            "How do I keep passwords and tokens out of the log output?",
            ("docs/Reference/Logging.md:Log Redaction",),
        ),
        ("absent", "How are crashed worker processes replaced when the app runs on all CPU cores?", ()),
        ("absent", "Where are HTTPS certificates fetched and renewed automatically?", ()),
        ("absent", "How does it answer a client that asks for only part of a file, to continue a broken download?", ()),
        ("absent", "How are incoming gRPC calls mapped to endpoints?", ()),
    ),
    "jsoup": (
        (
            "code",
            "How does it guess the text encoding of a downloaded page when the server says nothing?",
            ("org/jsoup/helper/DataUtil.java:parseInputStream", "org/jsoup/helper/DataUtil.java:detectCharsetFromBom"),
        ),
        (
            "code",
            "When a site redirects me after a POST, are my fields sent a second time?",
            ("org/jsoup/helper/HttpConnection.java:execute",),
        ),
        (
            "code",
            "Which fields of a login page are left out when it is sent, for example unticked boxes?",
            ("org/jsoup/nodes/FormElement.java:formData",),
        ),
        (
            "code",
            "How do cookies kept from an earlier visit get onto the next call to the same site?",
            ("org/jsoup/helper/CookieUtil.java:applyCookiesToRequest",),
        ),
        (
            "code",
            "Where does sanitizing decide that a javascript: link is dangerous and must go?",
            ("org/jsoup/safety/Safelist.java:testValidProtocol", "org/jsoup/safety/Safelist.java:isSafeAttribute"),
        ),
        (
            "code",
            "Given one node, how can I get a unique path that finds exactly it again?",
            ("org/jsoup/nodes/Element.java:cssSelector",),
        ),
        (
            "code",
            "Where does stray text end up that was written directly between table rows?",
            ("org/jsoup/parser/HtmlTreeBuilder.java:insertInFosterParent",),
        ),
        (
            "code",
            "Someone forgot to close a bold tag; what makes the following paragraphs bold as well?",
            ("org/jsoup/parser/HtmlTreeBuilder.java:reconstructFormattingElements",),
        ),
        (
            "code",
            "What cuts off a download that is too slow or grows too big?",
            ("org/jsoup/internal/ConstrainableInputStream.java:read",),
        ),
        (
            "code",
            "What happens if a tag carries the same attribute twice?",
            ("org/jsoup/nodes/Attributes.java:deduplicate",),
        ),
        (
            "code",
            "Find the part that turns a link such as ?page=2 or ../img into a full address.",
            ("org/jsoup/internal/StringUtil.java:resolve", "org/jsoup/nodes/Node.java:absUrl"),
        ),
        (
            "code",
            'Why is checked="checked" printed as plain checked in the output?',
            (
                "org/jsoup/nodes/Attribute.java:shouldCollapseAttribute",
                "org/jsoup/nodes/Attribute.java:isBooleanAttribute",
            ),
        ),
        ("howto", "How do I download a web page and list its headlines in a few lines?", ("README.md:Example",)),
        ("howto", "Whom can I ask for help, and where do I report a bug?", ("README.md:Development and support",)),
        ("absent", "How long does it wait for scripts of a page to finish before reading the content?", ()),
        ("absent", "Where are a site's robots.txt rules respected before fetching?", ()),
        ("absent", "How are failed downloads tried again after a pause?", ()),
        ("absent", "How is a page converted to Markdown?", ()),
    ),
    "clap": (
        (
            "code",
            "I mistyped an option and it offers a similar one; how is the closeness measured?",
            ("src/parser/features/suggestions.rs:did_you_mean", "src/parser/features/suggestions.rs:did_you_mean_flag"),
        ),
        (
            "code",
            "An option allowed everywhere is given before the subcommand; how does the subcommand get to see it?",
            ("src/parser/arg_matcher.rs:fill_in_global_values", "src/parser/arg_matcher.rs:propagate_globals"),
        ),
        (
            "code",
            "Two opposite switches are both typed and the later one should win; where does that happen?",
            ("src/parser/parser.rs:remove_overrides",),
        ),
        (
            "code",
            "At which point are environment variables consulted for an option nobody typed?",
            ("src/parser/parser.rs:add_env",),
        ),
        ("code", "How does it learn how wide the terminal is?", ("src/output/help_template.rs:dimensions",)),
        (
            "code",
            "Why do the columns stay aligned with Chinese text or colour codes in a description?",
            ("src/output/textwrap/core.rs:display_width", "src/output/textwrap/core.rs:ch_width"),
        ),
        (
            "code",
            "How can one executable act as different tools depending on the name it is started by?",
            ("src/builder/command.rs:try_get_matches_from_mut",),
        ),
        (
            "code",
            "How does it decide whether -5 on the command line is a number or another switch?",
            ("src/parser/parser.rs:parse_short_arg", "src/parser/parser.rs:is_new_arg"),
        ),
        (
            "code",
            "Why is there no complaint about a mandatory option when I used one that excludes it?",
            ("src/parser/validator.rs:is_missing_required_ok",),
        ),
        (
            "code",
            "When is a long description moved below its option instead of standing beside it?",
            ("src/output/help_template.rs:arg_next_line_help",),
        ),
        (
            "code",
            "With which status does the process finish after a wrong option, compared with --help?",
            ("src/error/mod.rs:exit", "src/error/mod.rs:use_stderr"),
        ),
        (
            "code",
            "Declaring an optional unnamed parameter before a mandatory one panics in debug builds; who does that?",
            ("src/builder/debug_asserts.rs:_verify_positionals",),
        ),
        (
            "code",
            "An option wants exactly three items but only two were typed; where is that noticed?",
            ("src/parser/parser.rs:verify_num_args",),
        ),
        (
            "howto",
            "I want to add a sample program of my own to the project; what do I have to observe?",
            ("examples/README.md:Contributing",),
        ),
        ("absent", "How is the user asked interactively for a mandatory option that was left out?", ()),
        ("absent", "Where are the error texts translated into the user's language?", ()),
        ("absent", "How does a program check for a newer release of itself and install it?", ()),
        ("absent", "How is very long help shown page by page, as with less?", ()),
    ),
    "maturin": (
        (
            "code",
            "How are the Intel and the Apple Silicon build glued together into one file on a Mac?",
            ("src/compile.rs:compile_universal2",),
        ),
        (
            "code",
            "How do system .so files my code links against get copied into the package and renamed?",
            ("src/build_context.rs:add_external_libs",),
        ),
        (
            "code",
            "How can a GitHub workflow publish a package without any stored password?",
            ("src/upload.rs:resolve_pypi_token_via_oidc",),
        ),
        (
            "code",
            "Several logins are configured for publishing; in which order are they tried?",
            ("src/upload.rs:resolve_pypi_cred",),
        ),
        (
            "code",
            "Which date do files inside the archive get, so that two builds come out byte for byte the same?",
            ("src/module_writer.rs:mtime",),
        ),
        (
            "code",
            "How does pip learn that a development install points back to my working folder?",
            ("src/develop.rs:configure_as_editable",),
        ),
        (
            "code",
            "Building for another platform stops because two Python versions were found; who complains?",
            ("src/cross_compile.rs:find_sysconfigdata",),
        ),
        (
            "code",
            "Why may I not call my new project 'deps' or 'incremental'?",
            ("src/new_project.rs:is_conflicting_artifact_name", "src/new_project.rs:cargo_check_name"),
        ),
        (
            "code",
            "How does it find out which release of the C library an Alpine system has?",
            ("src/auditwheel/musllinux.rs:get_musl_version",),
        ),
        (
            "code",
            "The built library cannot be imported since its entry symbol is absent; what tells me while building?",
            ("src/compile.rs:warn_missing_py_init",),
        ),
        (
            "code",
            "Find the part that drops left-out sub-crates from the manifest when the sources are packed.",
            ("src/source_distribution.rs:rewrite_cargo_toml",),
        ),
        (
            "code",
            "Where is the ready-made workflow file for building on many platforms put together?",
            ("src/ci.rs:generate_github",),
        ),
        (
            "howto",
            "How do I ship ordinary Python files next to the compiled code in one package?",
            ("README.md:Mixed rust/python projects",),
        ),
        (
            "howto",
            "How can I force additional files into the packed sources for use while compiling?",
            ("README.md:Source distribution",),
        ),
        ("absent", "How is the Mac library signed with a developer certificate and sent to Apple for approval?", ()),
        ("absent", "How do I withdraw a broken release from the package index?", ()),
        ("absent", "Where is the version number raised automatically before publishing?", ()),
        ("absent", "How are API reference pages generated from the doc comments of the Rust code?", ()),
    ),
    "zod": (
        (
            "code",
            "Why is 0.3 accepted as a whole multiple of 0.1 although decimals are inexact?",
            (
                "src/v4/core/util.ts:floatSafeRemainder",
                "v4/core/util.js:floatSafeRemainder",
                "src/v3/types.ts:floatSafeRemainder",
            ),
        ),
        (
            "code",
            "Several custom texts could apply to one failed rule; where is it decided which the user sees?",
            ("src/v4/core/util.ts:finalizeIssue", "v4/core/util.js:finalizeIssue"),
        ),
        (
            "code",
            "Why does an emoji count as a single character against the maximum of a text field?",
            ("src/v4/core/util.ts:codePointLength", "v4/core/util.js:codePointLength"),
        ),
        (
            "code",
            "How is the place of a bad field spelled, like friends[2].name, in the readable report?",
            ("src/v4/core/errors.ts:toDotPath", "v4/core/errors.js:toDotPath"),
        ),
        (
            "code",
            "In the exported JSON Schema, string-or-number comes out as one short list; where does that happen?",
            ("src/v4/core/to-json-schema.ts:compactTypeUnion", "v4/core/to-json-schema.js:compactTypeUnion"),
        ),
        (
            "code",
            "Importing a JSON Schema that points into another file fails; which code refuses it?",
            ("src/v4/classic/from-json-schema.ts:resolveRef", "v4/classic/from-json-schema.js:resolveRef"),
        ),
        (
            "code",
            "How does it find out that a shape contains itself, such as a comment with replies?",
            (
                "src/v4/core/memoizer.ts:isRecursive",
                "v4/core/memoizer.js:isRecursive",
                "src/v4/core/memoizer.ts:isRecursiveSchema",
            ),
        ),
        (
            "code",
            "Find the part that locks a parsed object so nobody can change it afterwards.",
            ("src/v4/core/schemas.ts:handleReadonlyResult", "v4/core/schemas.js:handleReadonlyResult"),
        ),
        (
            "code",
            "How is a mistyped payment card number detected?",
            (
                "src/v4/core/schemas.ts:isLuhnAlgo",
                "src/v4/core/schemas.ts:isValidCreditCard",
                "v4/core/schemas.js:isLuhnAlgo",
                "v4/core/schemas.js:isValidCreditCard",
            ),
        ),
        (
            "code",
            "Where does it notice extra fields in the input that the shape never mentions?",
            ("src/v4/core/schemas.ts:handleCatchall", "v4/core/schemas.js:handleCatchall"),
        ),
        (
            "code",
            "What happens to a nested piece of a shape that cannot be turned into fast generated code?",
            (
                "src/v4/core/compile.ts:compileChild",
                "src/v4/core/compile.ts:emitRuntimeIsland",
                "v4/core/compile.js:compileChild",
                "v4/core/compile.js:emitRuntimeIsland",
            ),
        ),
        (
            "code",
            "How does the Russian text choose the right form of a noun after a number?",
            ("src/v4/locales/ru.ts:getRussianPlural", "v4/locales/ru.js:getRussianPlural"),
        ),
        (
            "howto",
            "How can I speed up checking of huge arrays without rewriting my shapes?",
            ("README.md:AOT compilation",),
        ),
        ("howto", "How do I check input without wrapping every call in try and catch?", ("README.md:Handling errors",)),
        ("absent", "How is random sample data generated from a shape for use in tests?", ()),
        ("absent", "Where are validation rules read from annotations on class fields?", ()),
        ("absent", "How are dangerous script tags cleaned out of text fields?", ()),
        ("absent", "How can a shape be exported as a database table definition?", ()),
    ),
}
