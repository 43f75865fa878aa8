"""Plain questions about real repositories, written from knowledge of the projects, not from the wording of their code.

`(corpus, question, answers)`: an answer is a symbol, `file suffix:name`; any one of them counts. Even positions are the
dev half (looked at while the ranking was made), odd positions the held-out half (only measured).
"""

QUESTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("django", "Where is the middleware chain put together?", ("core/handlers/base.py:load_middleware",)),
    (
        "django",
        "How does Django find the view for a URL?",
        ("urls/resolvers.py:resolve", "core/handlers/base.py:resolve_request"),
    ),
    (
        "django",
        "How are passwords hashed and checked?",
        (
            "contrib/auth/hashers.py:check_password",
            "contrib/auth/hashers.py:make_password",
            "contrib/auth/hashers.py:verify_password",
        ),
    ),
    (
        "django",
        "Where is it decided whether a request's host is allowed?",
        ("http/request.py:get_host", "http/request.py:validate_host"),
    ),
    (
        "django",
        "How does the ORM turn a filter keyword into a join and a lookup?",
        (
            "db/models/sql/query.py:build_filter",
            "db/models/sql/query.py:setup_joins",
            "db/models/sql/query.py:names_to_path",
            "db/models/sql/query.py:solve_lookup_type",
        ),
    ),
    (
        "django",
        "What happens when an object is deleted and others point to it?",
        (
            "db/models/deletion.py:collect",
            "db/models/deletion.py:CASCADE",
            "db/models/deletion.py:Collector",
            "db/models/deletion.py:delete",
        ),
    ),
    (
        "django",
        "How are pending migrations ordered before they run?",
        (
            "db/migrations/executor.py:migration_plan",
            "db/migrations/graph.py:iterative_dfs",
            "db/migrations/graph.py:forwards_plan",
        ),
    ),
    (
        "django",
        "Where does the autodetector notice that a field was renamed?",
        (
            "db/migrations/autodetector.py:create_renamed_fields",
            "db/migrations/autodetector.py:generate_renamed_fields",
        ),
    ),
    (
        "django",
        "How are templates compiled into nodes?",
        ("template/base.py:parse", "template/base.py:compile_nodelist", "template/base.py:Parser"),
    ),
    (
        "django",
        "Where is output escaped in templates to stop XSS?",
        ("template/base.py:render_value_in_context", "utils/html.py:escape", "utils/html.py:conditional_escape"),
    ),
    (
        "django",
        "How does the development server notice changed code and restart?",
        (
            "utils/autoreload.py:run_with_reloader",
            "utils/autoreload.py:restart_with_reloader",
            "utils/autoreload.py:trigger_reload",
            "utils/autoreload.py:StatReloader",
            "utils/autoreload.py:snapshot_files",
            "utils/autoreload.py:tick",
        ),
    ),
    (
        "django",
        "How does atomic roll back when an exception leaves the block?",
        ("db/transaction.py:__exit__", "db/transaction.py:Atomic"),
    ),
    (
        "django",
        "Which code picks the database for a read?",
        ("db/utils.py:_router_func", "db/utils.py:ConnectionRouter", "db/utils.py:db_for_read"),
    ),
    (
        "django",
        "How is the language of a visitor chosen?",
        ("utils/translation/trans_real.py:get_language_from_request", "middleware/locale.py:process_request"),
    ),
    (
        "django",
        "Where are uploaded files kept in memory or written to disk depending on their size?",
        (
            "core/files/uploadhandler.py:handle_raw_input",
            "core/files/uploadhandler.py:MemoryFileUploadHandler",
            "core/files/uploadhandler.py:TemporaryFileUploadHandler",
            "core/files/uploadhandler.py:new_file",
        ),
    ),
    (
        "django",
        "How does a form collect its errors?",
        ("forms/forms.py:full_clean", "forms/forms.py:add_error", "forms/forms.py:_clean_fields"),
    ),
    (
        "django",
        "How does the session middleware save the session at the end of a request?",
        ("contrib/sessions/middleware.py:process_response",),
    ),
    (
        "django",
        "What limits the number of form fields in a POST?",
        (
            "http/request.py:_load_post_and_files",
            "http/request.py:QueryDict",
            "http/multipartparser.py:_parse",
            "utils/http.py:parse_qsl",
            "http/request.py:__init__",
        ),
    ),
    (
        "django",
        "How are signals delivered to receivers?",
        ("dispatch/dispatcher.py:send", "dispatch/dispatcher.py:_live_receivers", "dispatch/dispatcher.py:send_robust"),
    ),
    (
        "django",
        "How is a page cached and under which key?",
        (
            "utils/cache.py:learn_cache_key",
            "utils/cache.py:_generate_cache_key",
            "utils/cache.py:get_cache_key",
            "middleware/cache.py:process_response",
        ),
    ),
    (
        "sqlalchemy",
        "How does the connection pool give out a connection and wait when it is exhausted?",
        ("pool/impl.py:_do_get", "pool/base.py:_checkout", "pool/base.py:connect"),
    ),
    (
        "sqlalchemy",
        "In which order does a flush write objects?",
        (
            "orm/unitofwork.py:_generate_actions",
            "orm/unitofwork.py:execute",
            "orm/session.py:_flush",
            "orm/mapper.py:_sorted_tables",
        ),
    ),
    (
        "sqlalchemy",
        "How is a dead connection noticed before it is used?",
        (
            "pool/base.py:_checkout",
            "engine/default.py:do_ping",
            "engine/default.py:_do_ping_w_event",
            "pool/base.py:_ConnectionFairy",
        ),
    ),
    ("sqlalchemy", "Where is a SELECT statement turned into SQL text?", ("sql/compiler.py:visit_select",)),
    (
        "sqlalchemy",
        "How does the identity map keep one object per row?",
        (
            "orm/identity.py:WeakInstanceDict",
            "orm/loading.py:_instance",
            "orm/identity.py:add",
            "orm/loading.py:_instance_processor",
        ),
    ),
    (
        "sqlalchemy",
        "How are relationships loaded lazily when the attribute is read?",
        (
            "orm/strategies.py:_load_for_state",
            "orm/strategies.py:_LazyLoader",
            "orm/strategies.py:LazyLoader",
            "orm/strategies.py:_emit_lazyload",
        ),
    ),
    (
        "sqlalchemy",
        "How is an insert of many rows split into batches?",
        (
            "sql/compiler.py:_deliver_insertmanyvalues_batches",
            "engine/default.py:_deliver_insertmanyvalues_batches",
            "engine/base.py:_exec_insertmany_context",
        ),
    ),
    (
        "sqlalchemy",
        "Where are tables read from an existing database?",
        (
            "engine/reflection.py:reflect_table",
            "sql/schema.py:reflect",
            "engine/reflection.py:_reflect_column",
            "engine/reflection.py:Inspector",
        ),
    ),
    (
        "sqlalchemy",
        "How are tables sorted by their foreign keys?",
        ("sql/ddl.py:sort_tables", "sql/ddl.py:sort_tables_and_constraints", "sql/schema.py:sorted_tables"),
    ),
    ("sqlalchemy", "How is the URL of a database parsed?", ("engine/url.py:_parse_url", "engine/url.py:make_url")),
    (
        "requests",
        "When is a redirect followed and which headers are dropped?",
        ("sessions.py:resolve_redirects", "sessions.py:rebuild_auth", "sessions.py:should_strip_auth"),
    ),
    (
        "requests",
        "How are proxies picked from the environment?",
        (
            "utils.py:get_environ_proxies",
            "utils.py:should_bypass_proxies",
            "utils.py:resolve_proxies",
            "utils.py:select_proxy",
            "sessions.py:merge_environment_settings",
        ),
    ),
    (
        "requests",
        "How does digest authentication answer a challenge?",
        ("auth.py:build_digest_header", "auth.py:handle_401"),
    ),
    (
        "requests",
        "How is the encoding of a response guessed?",
        ("utils.py:get_encoding_from_headers", "models.py:apparent_encoding", "models.py:text"),
    ),
    ("flask", "How does a view's return value become a response?", ("app.py:make_response",)),
    (
        "flask",
        "How is the session cookie signed and read?",
        (
            "sessions.py:get_signing_serializer",
            "sessions.py:open_session",
            "sessions.py:save_session",
            "sessions.py:SecureCookieSessionInterface",
        ),
    ),
    (
        "flask",
        "What decides which error handler runs for an exception?",
        ("sansio/app.py:_find_error_handler", "app.py:handle_user_exception"),
    ),
    (
        "flask",
        "How does the command line find my application?",
        ("cli.py:locate_app", "cli.py:find_best_app", "cli.py:load_app", "cli.py:find_app_by_string"),
    ),
    (
        "celery",
        "How is a failed task retried later?",
        ("app/task.py:retry", "worker/request.py:on_retry", "app/trace.py:handle_retry"),
    ),
    (
        "celery",
        "What does the worker do when a task takes too long?",
        (
            "worker/request.py:on_timeout",
            "concurrency/asynpool.py:on_soft_timeout",
            "concurrency/asynpool.py:on_hard_timeout",
        ),
    ),
    (
        "celery",
        "When is a periodic task due?",
        ("schedules.py:is_due", "beat.py:is_due", "schedules.py:remaining_estimate", "beat.py:tick"),
    ),
    (
        "celery",
        "How does a chord know that all header tasks are done?",
        (
            "backends/redis.py:on_chord_part_return",
            "backends/base.py:on_chord_part_return",
            "app/builtins.py:unlock_chord",
            "app/builtins.py:add_unlock_chord_task",
        ),
    ),
    (
        "scrapy",
        "How are duplicate requests filtered out?",
        ("dupefilters.py:request_seen", "dupefilters.py:RFPDupeFilter", "core/scheduler.py:enqueue_request"),
    ),
    (
        "scrapy",
        "How is the delay between downloads adapted to the server?",
        (
            "extensions/throttle.py:_adjust_delay",
            "extensions/throttle.py:AutoThrottle",
            "extensions/throttle.py:_response_downloaded",
        ),
    ),
    (
        "scrapy",
        "Where is robots.txt respected?",
        (
            "downloadermiddlewares/robotstxt.py:process_request",
            "downloadermiddlewares/robotstxt.py:process_request_2",
            "downloadermiddlewares/robotstxt.py:RobotsTxtMiddleware",
            "downloadermiddlewares/robotstxt.py:robot_parser",
        ),
    ),
    ("starlette", "How are path parameters matched and converted?", ("routing.py:compile_path", "routing.py:matches")),
    (
        "starlette",
        "How are background tasks run after the response was sent?",
        ("background.py:__call__", "responses.py:__call__", "background.py:BackgroundTasks"),
    ),
    (
        "starlette",
        "How does the server send a part of a file when a range is asked for?",
        (
            "responses.py:_handle_single_range",
            "responses.py:_parse_range_header",
            "responses.py:_handle_multiple_ranges",
            "responses.py:_parse_ranges",
        ),
    ),
    (
        "rxjs",
        "How does an operator retry a failed observable?",
        ("operators/retry.ts:retry", "operators/retryWhen.ts:retryWhen"),
    ),
    (
        "rxjs",
        "Where are subscriptions torn down and errors during that collected?",
        ("internal/Subscription.ts:unsubscribe", "internal/Subscription.ts:Subscription"),
    ),
    (
        "rxjs",
        "How does switching to a new inner stream cancel the previous one?",
        ("operators/switchMap.ts:switchMap",),
    ),
    (
        "rxjs",
        "How do tests run with virtual time and marble strings?",
        (
            "testing/TestScheduler.ts:parseMarbles",
            "testing/TestScheduler.ts:TestScheduler",
            "testing/TestScheduler.ts:run",
            "scheduler/VirtualTimeScheduler.ts:flush",
        ),
    ),
    (
        "rxjs",
        "How are past values given to late subscribers?",
        (
            "internal/ReplaySubject.ts:_subscribe",
            "internal/ReplaySubject.ts:ReplaySubject",
            "operators/shareReplay.ts:shareReplay",
        ),
    ),
    (
        "express",
        "How is the content type negotiated from the Accept header?",
        ("lib/request.js:accepts", "lib/response.js:format"),
    ),
    (
        "express",
        "How does the app render a template file?",
        ("lib/application.js:render", "lib/view.js:View", "lib/view.js:render", "lib/response.js:render"),
    ),
    (
        "fastify",
        "How is the request body validated against a schema?",
        (
            "lib/validation.js:validate",
            "lib/validation.js:validateParam",
            "lib/validation.js:compileSchemasForValidation",
            "lib/handle-request.js:preValidationCallback",
        ),
    ),
    (
        "fastify",
        "What happens when the body is larger than the limit?",
        ("lib/content-type-parser.js:rawBody", "lib/contentTypeParser.js:rawBody", "lib/content-type-parser.js:onData"),
    ),
    (
        "cobra",
        "How are suggestions made for a mistyped command?",
        ("command.go:SuggestionsFor", "command.go:findSuggestions", "cobra.go:ld"),
    ),
    (
        "cobra",
        "Where are the arguments of a command checked?",
        ("command.go:ValidateArgs", "args.go:ExactArgs", "args.go:legacyArgs", "args.go:NoArgs", "args.go:RangeArgs"),
    ),
    (
        "cobra",
        "How does shell completion work out what may come next?",
        ("completions.go:getCompletions", "custom_completions.go:getCompletions", "completions.go:initCompleteCmd"),
    ),
    ("gin", "How does the router find a handler for a path?", ("tree.go:getValue",)),
    (
        "gin",
        "How does the server survive a panic in a handler?",
        ("recovery.go:CustomRecoveryWithWriter", "recovery.go:Recovery", "recovery.go:RecoveryWithWriter"),
    ),
    (
        "gin",
        "How is the client's real IP address found behind a proxy?",
        ("context.go:ClientIP", "context.go:RemoteIP", "gin.go:validateHeader", "gin.go:isTrustedProxy"),
    ),
    ("raft", "How does a candidate win an election?", ("raft.go:runCandidate", "raft.go:electSelf")),
    (
        "raft",
        "When is a log entry considered committed?",
        ("commitment.go:recalculate", "commitment.go:match", "commitment.go:commitment"),
    ),
    (
        "raft",
        "How does the leader bring a lagging follower up to date?",
        (
            "replication.go:replicateTo",
            "replication.go:sendLatestSnapshot",
            "replication.go:replicate",
            "replication.go:pipelineReplicate",
        ),
    ),
    ("raft", "What does a follower do when the leader is silent for too long?", ("raft.go:runFollower",)),
    (
        "tokio",
        "How does an idle worker steal tasks from another one?",
        (
            "scheduler/multi_thread/worker.rs:steal_work",
            "thread_pool/worker.rs:steal_work",
            "queue.rs:steal_into",
            "multi_thread/queue.rs:steal_into2",
            "thread_pool/queue.rs:steal_into2",
        ),
    ),
    (
        "tokio",
        "How does a bounded channel make senders wait when it is full?",
        (
            "sync/mpsc/bounded.rs:send",
            "sync/mpsc/bounded.rs:reserve",
            "sync/mpsc/bounded.rs:reserve_inner",
            "sync/batch_semaphore.rs:poll_acquire",
            "sync/mpsc/bounded.rs:channel",
        ),
    ),
    (
        "tokio",
        "How are timers stored and fired?",
        (
            "time/wheel/mod.rs:Wheel",
            "time/wheel/mod.rs:poll",
            "time/wheel/mod.rs:insert",
            "runtime/time/mod.rs:process_at_time",
            "time/wheel/level.rs:Level",
            "runtime/time/wheel/mod.rs:process_expiration",
        ),
    ),
    (
        "tokio",
        "How does a task stop using too much of the thread without yielding?",
        ("coop.rs:poll_proceed", "coop.rs:budget", "coop.rs:Budget", "coop.rs:with_budget"),
    ),
    (
        "rayon",
        "How is work split between two closures and joined again?",
        (
            "src/iter/plumbing/mod.rs:bridge_producer_consumer",
            "join/mod.rs:join",
            "iter/plumbing/mod.rs:helper",
            "iter/plumbing/mod.rs:Splitter",
        ),
    ),
    (
        "rayon",
        "How are slices sorted in parallel?",
        (
            "slice/mergesort.rs:par_mergesort",
            "slice/quicksort.rs:par_quicksort",
            "slice/quicksort.rs:recurse",
            "slice/mod.rs:par_sort",
            "slice/mergesort.rs:merge_recurse",
        ),
    ),
    (
        "hyper",
        "How is a chunked body decoded?",
        ("proto/h1/decode.rs:decode", "proto/h1/decode.rs:ChunkedState", "proto/h1/decode.rs:step"),
    ),
    (
        "hyper",
        "How are idle connections reused by the client?",
        (
            "client/pool.rs:Pool",
            "client/pool.rs:checkout",
            "client/pool.rs:pop",
            "client/pool.rs:poll",
            "client/pool.rs:IdlePopper",
            "client/pool.rs:reuse",
        ),
    ),
    (
        "re2",
        "How is a regular expression simplified before it is compiled?",
        (
            "re2/simplify.cc:Simplify",
            "re2/simplify.cc:SimplifyRegexp",
            "re2/simplify.cc:SimplifyWalker",
            "re2/simplify.cc:PostVisit",
            "re2/simplify.cc:SimplifyRepeat",
        ),
    ),
    (
        "re2",
        "What happens when the DFA runs out of memory for its states?",
        (
            "re2/dfa.cc:ResetCache",
            "re2/dfa.cc:CachedState",
            "re2/dfa.cc:InlinedSearchLoop",
            "re2/dfa.cc:RunStateOnByte",
        ),
    ),
    (
        "re2",
        "How are the submatches found when a program is small enough to try one pass?",
        ("re2/onepass.cc:SearchOnePass", "re2/onepass.cc:IsOnePass"),
    ),
    (
        "re2",
        "How are Unicode character classes translated to bytes?",
        (
            "re2/compile.cc:AddRuneRange",
            "re2/compile.cc:AddRuneRangeUTF8",
            "re2/compile.cc:Add_80_10ffff",
            "re2/compile.cc:EndRange",
            "re2/parse.cc:AddUnicodeGroup",
            "re2/parse.cc:AddUGroup",
        ),
    ),
)
