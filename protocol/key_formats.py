"""Formats of keys that their makers gave a prefix of its own: one table, from the makers' documentation and from what
public scanners look for. Used by `callboard.protocol.masking`."""

from __future__ import annotations

from typing import Final, NamedTuple


class KeyFormat(NamedTuple):
    """Keys that begin with `prefix`; `rest` is what follows it, `source` who says so."""

    prefix: str
    rest: str
    source: str


_WORD: Final = "[A-Za-z0-9]"
_URL_SAFE: Final = "[A-Za-z0-9_-]"
_BASE64: Final = "[A-Za-z0-9+/]"
_HEX: Final = "[0-9a-fA-F]"
_LOWER_HEX: Final = "[0-9a-f]"
_UPPER: Final = "[A-Z0-9]"
_UUID: Final = f"{_LOWER_HEX}{{8}}-{_LOWER_HEX}{{4}}-{_LOWER_HEX}{{4}}-{_LOWER_HEX}{{4}}-{_LOWER_HEX}{{12}}"
_END: Final = "(?![A-Za-z0-9])"

#: A group of this name holds what is no key, and is not looked at again: a word of one prefix after the other would
#: be read to its end from each of them.
NO_KEY: Final = "no_key"

#: Lengths are the least that is taken for a key, somewhat below what the makers give out. A short prefix, or one that
#: words begin with too, has the very length.
FORMATS: Final[tuple[KeyFormat, ...]] = (
    # -- models and what is built on them
    KeyFormat("sk-", rf"{_URL_SAFE}{{16,}}", "platform.openai.com, docs.anthropic.com, openrouter.ai, deepseek.com"),
    KeyFormat("AIza", rf"{_URL_SAFE}{{30,}}", "cloud.google.com/docs/authentication/api-keys"),
    KeyFormat("AQ.Ab", rf"{_URL_SAFE}{{30,}}", "ai.google.dev/gemini-api/docs/api-key"),
    KeyFormat("ABSK", rf"{_BASE64}{{60,}}=*", "docs.aws.amazon.com/bedrock: API keys"),
    KeyFormat("bedrock-api-key-", rf"{_BASE64}{{20,}}=*", "docs.aws.amazon.com/bedrock: short-term API keys"),
    KeyFormat("hf_", rf"{_WORD}{{20,}}", "huggingface.co/docs/hub/security-tokens"),
    KeyFormat("api_org_", rf"{_WORD}{{20,}}", "huggingface.co/docs/hub/security-tokens"),
    KeyFormat("gsk_", rf"{_WORD}{{20,}}", "console.groq.com/docs"),
    KeyFormat("xai-", rf"{_WORD}{{20,}}", "docs.x.ai"),
    KeyFormat("csk-", rf"{_WORD}{{20,}}", "inference-docs.cerebras.ai"),
    KeyFormat("pplx-", rf"{_WORD}{{20,}}", "docs.perplexity.ai"),
    KeyFormat("nvapi-", rf"{_URL_SAFE}{{20,}}", "docs.api.nvidia.com"),
    KeyFormat("r8_", rf"{_WORD}{{20,}}", "replicate.com/docs/topics/security/api-tokens"),
    KeyFormat("fw_", rf"{_WORD}{{20,}}", "docs.fireworks.ai"),
    KeyFormat("tgp_v1_", rf"{_URL_SAFE}{{30,}}", "docs.together.ai"),
    KeyFormat("up_", rf"{_WORD}{{28,}}", "console.upstage.ai/docs"),
    KeyFormat("pa-", rf"{_URL_SAFE}{{43}}{_END}", "docs.voyageai.com"),
    KeyFormat("tvly-", rf"{_URL_SAFE}{{16,}}", "docs.tavily.com"),
    KeyFormat("jina_", rf"{_URL_SAFE}{{20,}}", "jina.ai/embeddings"),
    KeyFormat("pcsk_", rf"{_URL_SAFE}{{20,}}", "docs.pinecone.io"),
    KeyFormat("lsv2_", rf"(?:pt|sk)_{_URL_SAFE}{{20,}}", "docs.smith.langchain.com"),
    KeyFormat("ls__", rf"{_LOWER_HEX}{{32}}", "docs.smith.langchain.com: before 2024"),
    KeyFormat("llx-", rf"{_WORD}{{30,}}", "docs.cloud.llamaindex.ai"),
    KeyFormat("e2b_", rf"{_LOWER_HEX}{{32,}}", "e2b.dev/docs/api-key"),
    KeyFormat("bb_", rf"(?:live|test)_{_URL_SAFE}{{20,}}", "docs.browserbase.com"),
    KeyFormat("fc-", rf"{_LOWER_HEX}{{32}}{_END}", "docs.firecrawl.dev"),
    KeyFormat("apify_api_", rf"{_WORD}{{30,}}", "docs.apify.com/platform/integrations/api"),
    KeyFormat("wandb_v1_", rf"{_URL_SAFE}{{30,}}", "docs.wandb.ai"),
    KeyFormat("rpa_", rf"{_UPPER}{{36,}}", "docs.runpod.io/get-started/api-keys"),
    KeyFormat("esecret_", rf"{_WORD}{{20,}}", "docs.anyscale.com"),
    KeyFormat("nk-", rf"{_URL_SAFE}{{43}}{_END}", "docs.nomic.ai"),
    KeyFormat("luma-", rf"{_UUID}", "docs.lumalabs.ai"),
    KeyFormat("key_", rf"{_LOWER_HEX}{{64,}}", "docs.dev.runwayml.com"),
    KeyFormat("sk_", rf"{_LOWER_HEX}{{48}}{_END}", "elevenlabs.io/docs/api-reference/authentication"),
    KeyFormat("sk_car_", rf"{_WORD}{{16,}}", "docs.cartesia.ai"),
    KeyFormat("tpuf_", rf"{_WORD}{{20,}}", "turbopuffer.com/docs/auth"),
    # -- clouds
    KeyFormat("ya29.", rf"{_URL_SAFE}{{20,}}", "developers.google.com/identity/protocols/oauth2"),
    KeyFormat("1//0", rf"{_URL_SAFE}{{40,}}", "developers.google.com/identity/protocols/oauth2: refresh tokens"),
    KeyFormat("GOCSPX-", rf"{_URL_SAFE}{{20,}}", "developers.google.com/identity/protocols/oauth2"),
    *(
        KeyFormat(f"A{kind}A", rf"{_UPPER}{{16}}(?![A-Z0-9])", "docs.aws.amazon.com/IAM: unique identifiers")
        for kind in ("KI", "SI", "BI", "CC")
    ),
    *(
        KeyFormat(start, rf"{_BASE64}{{60,}}=*", "docs.aws.amazon.com/IAM: session tokens")
        for start in ("FwoGZXIvYXdz", "IQoJb3JpZ2lu")
    ),
    KeyFormat("amzn.mws.", _UUID, "developer-docs.amazon.com: MWS"),
    KeyFormat("amzn1.oa2-cs.v1.", rf"{_LOWER_HEX}{{40,}}", "developer.amazon.com: login with Amazon"),
    KeyFormat("LTAI", rf"{_WORD}{{16,}}", "alibabacloud.com/help: AccessKey pairs"),
    KeyFormat("AKID", rf"{_WORD}{{32,}}", "tencentcloud.com/document: API keys"),
    KeyFormat("AKLT", rf"{_BASE64}{{40,}}=*", "volcengine.com/docs: access keys"),
    KeyFormat("AQVN", rf"{_URL_SAFE}{{35,}}", "yandex.cloud/docs/iam: API keys"),
    KeyFormat("t1.", rf"{_URL_SAFE}{{20,}}=*\.{_URL_SAFE}{{80,}}", "yandex.cloud/docs/iam: IAM tokens"),
    KeyFormat("y0_", rf"{_URL_SAFE}{{50,}}", "yandex.cloud/docs/iam: OAuth tokens"),
    *(KeyFormat(f"do{kind}_v1_", rf"{_HEX}{{32,}}", "docs.digitalocean.com/reference/api") for kind in "opr"),
    KeyFormat("DO00", rf"{_UPPER}{{16}}{_END}", "docs.digitalocean.com/products/spaces: access keys"),
    KeyFormat("K00", rf"[0-9]{_BASE64}{{27}}{_END}", "backblaze.com/docs: application keys"),
    KeyFormat("HRKU-", rf"{_URL_SAFE}{{24,}}", "devcenter.heroku.com"),
    KeyFormat("rnd_", rf"{_WORD}{{28,}}", "render.com/docs/api"),
    KeyFormat("fo1_", rf"{_URL_SAFE}{{30,}}", "fly.io/docs/security/tokens"),
    *(KeyFormat(f"fm{kind}_", rf"{_BASE64}{{60,}}=*", "fly.io/docs/security/tokens") for kind in ("1a", "1r", "2")),
    *(KeyFormat(f"vc{kind}_", rf"{_WORD}{{24,}}", "vercel.com/docs: token formats") for kind in "pkair"),
    *(KeyFormat(f"nf{kind}_", rf"{_WORD}{{30,}}", "docs.netlify.com: access tokens") for kind in "pcoub"),
    *(
        KeyFormat(f"cf{kind}_", rf"{_WORD}{{40,}}", "developers.cloudflare.com/fundamentals/api: token formats")
        for kind in ("k", "ut", "at")
    ),
    KeyFormat("v1.0-", rf"{_LOWER_HEX}{{24}}-{_LOWER_HEX}{{100,}}", "developers.cloudflare.com/ssl/origin"),
    *(KeyFormat(f"dd{kind}_", rf"{_WORD}{{36}}{_END}", "docs.deno.com/deploy: access tokens") for kind in "pw"),
    KeyFormat("tk-us-", rf"{_URL_SAFE}{{40,}}", "developers.scalingo.com"),
    KeyFormat("vtwn_", rf"{_WORD}{{20,}}", "docs.val.town"),
    # -- code and what builds it
    *(KeyFormat(f"gh{kind}_", rf"{_WORD}{{20,}}", "github.blog/2021-04-05: token formats") for kind in "pousr"),
    KeyFormat("github_pat_", r"\w{22,}", "docs.github.com/authentication: fine-grained tokens"),
    *(
        KeyFormat(f"gl{kind}-", r"[\w.-]{16,}", "docs.gitlab.com/security/tokens")
        for kind in ("pat", "dt", "ft", "rt", "rtr", "soat", "cbt", "ptt", "imt", "agent", "oas", "ffct", "wt")
    ),
    KeyFormat("GR1348941", rf"{_URL_SAFE}{{20,}}", "docs.gitlab.com: runner registration tokens"),
    *(KeyFormat(start, r"[A-Za-z0-9_=-]{24,}", "support.atlassian.com: API tokens") for start in ("ATATT3", "ATCTT3")),
    KeyFormat("ATBB", rf"{_WORD}{{28,}}", "support.atlassian.com/bitbucket-cloud: app passwords"),
    KeyFormat("ATTA", rf"{_HEX}{{60,}}", "developer.atlassian.com/cloud/trello"),
    KeyFormat("npm_", rf"{_WORD}{{30,}}", "docs.npmjs.com: about access tokens"),
    KeyFormat("pypi-", rf"{_URL_SAFE}{{32,}}", "pypi.org/help#apitoken"),
    KeyFormat("rubygems_", rf"{_HEX}{{32,}}", "guides.rubygems.org/api-key-scopes"),
    KeyFormat("cio", rf"{_WORD}{{32}}{_END}", "doc.rust-lang.org/cargo: crates.io tokens"),
    KeyFormat("oy2", rf"[a-z0-9]{{43}}{_END}", "learn.microsoft.com/nuget: API keys"),
    KeyFormat("CLOJARS_", rf"{_WORD}{{50,}}", "github.com/clojars: deploy tokens"),
    KeyFormat("ovsxat_", rf"{_URL_SAFE}{{20,}}", "github.com/eclipse/openvsx"),
    KeyFormat("dckr_", rf"(?:pat|oat)_{_URL_SAFE}{{20,}}", "docs.docker.com/security/access-tokens"),
    KeyFormat("AKCp", rf"{_WORD}{{60,}}", "jfrog.com/help: API keys"),
    KeyFormat("cmVmd", rf"{_WORD}{{59}}{_END}", "jfrog.com/help: reference tokens"),
    KeyFormat("sgp_", rf"(?:local_|){_LOWER_HEX}{{16,}}(?:_|){_LOWER_HEX}*", "sourcegraph.com/docs: access tokens"),
    *(KeyFormat(f"sq{kind}_", rf"{_LOWER_HEX}{{40}}", "docs.sonarsource.com: token types") for kind in "upa"),
    *(
        KeyFormat(f"CCI{kind}_", rf"{_WORD}{{10,}}_{_LOWER_HEX}{{32,}}", "circleci.com/docs/managing-api-tokens")
        for kind in ("PAT", "PRJ")
    ),
    KeyFormat("bkua_", rf"{_LOWER_HEX}{{32,}}", "buildkite.com/docs/apis/managing-api-tokens"),
    KeyFormat("API-", rf"{_UPPER}{{26}}{_END}", "octopus.com/docs/octopus-rest-api"),
    *(
        KeyFormat(
            f"{kind}at.", rf"{_URL_SAFE}{{22}}\.{_WORD}{{24}}\.{_WORD}{{20}}", "developer.harness.io/docs: tokens"
        )
        for kind in "ps"
    ),
    *(KeyFormat(f"pn{kind}_", rf"{_WORD}{{36}}", "docs.prefect.io: API keys") for kind in "ub"),
    KeyFormat("pul-", rf"{_HEX}{{32,}}", "pulumi.com/docs: access tokens"),
    KeyFormat("ico-", rf"{_WORD}{{32}}{_END}", "infracost.io/docs"),
    KeyFormat("snyk_", r"(?:uat|sat)\.[A-Za-z0-9_.-]{30,}", "docs.snyk.io: token formats"),
    KeyFormat("PMAK-", r"[A-Za-z0-9-]{24,}", "learning.postman.com"),
    KeyFormat("PMAT-", rf"{_UPPER}{{20,}}", "learning.postman.com"),
    KeyFormat("rdme_", rf"{_WORD}{{40,}}", "docs.readme.com"),
    KeyFormat("waka_", _UUID, "wakatime.com/developers"),
    KeyFormat("ptr_", rf"{_BASE64}{{40,}}=*", "docs.portainer.io/api"),
    # -- secrets, identities, networks
    *(KeyFormat(f"hv{kind}.", rf"{_URL_SAFE}{{20,}}", "developer.hashicorp.com: vault tokens") for kind in "sbr"),
    KeyFormat("dp.", r"(?:pt|st|ct|sa|scim|audit)\.[\w.-]{20,}", "docs.doppler.com: token formats"),
    KeyFormat(
        "st.", rf"{_LOWER_HEX}{{24}}\.{_LOWER_HEX}{{32}}\.{_LOWER_HEX}{{32}}", "infisical.com/docs: service tokens"
    ),
    KeyFormat("ops_", r"eyJ[A-Za-z0-9_=-]{40,}", "developer.1password.com: service accounts"),
    KeyFormat("A3-", rf"{_UPPER}{{6}}-[A-Z0-9-]{{20,}}", "1password.com: secret keys"),
    KeyFormat("AGE-SECRET-KEY-", r"[0-9A-Z]{20,}", "age-encryption.org/v1"),
    KeyFormat("nsec1", r"[a-z0-9]{58}", "github.com/nostr-protocol/nips: NIP-19"),
    KeyFormat("xprv", rf"{_WORD}{{100,}}", "github.com/bitcoin/bips: BIP-32"),
    KeyFormat("tskey-", r"[A-Za-z0-9-]{16,}", "tailscale.com/kb: auth keys"),
    KeyFormat("dnkey-", rf"{_URL_SAFE}{{26}}-{_URL_SAFE}{{40,}}", "docs.defined.net"),
    KeyFormat("ory_", rf"(?:pat|st|at|rt)_{_URL_SAFE}{{20,}}", "ory.sh/docs: API keys"),
    KeyFormat("secret-", rf"(?:live-|test-|){_WORD}{{36,}}", "stytch.com/docs, docs.statsig.com: secret keys"),
    *(KeyFormat(f"{kind}-", _UUID, "launchdarkly.com/docs: keys") for kind in ("sdk", "api", "mob")),
    KeyFormat("configcat-sdk-1/", rf"{_URL_SAFE}{{22}}/{_URL_SAFE}{{22}}", "configcat.com/docs"),
    KeyFormat("zpka_", rf"{_WORD}{{30,}}(?:_|){_WORD}*", "zuplo.com/docs: API keys"),
    KeyFormat("unkey_", rf"{_WORD}{{20,}}", "unkey.com/docs: root keys"),
    KeyFormat("p8e-", rf"{_WORD}{{32}}", "developer.adobe.com: client secrets"),
    # -- data
    KeyFormat("dapi", rf"{_HEX}{{32}}(?![0-9A-Za-z])", "docs.databricks.com: personal access tokens"),
    KeyFormat("dose", rf"{_LOWER_HEX}{{32}}{_END}", "docs.databricks.com: OAuth secrets"),
    KeyFormat("pscale_", r"(?:tkn|pw|oauth)_[\w=.-]{30,}", "planetscale.com/docs: service tokens"),
    KeyFormat("sbp_", rf"{_HEX}{{32,}}", "supabase.com/docs"),
    KeyFormat("sb_secret_", rf"{_URL_SAFE}{{20,}}", "supabase.com/docs: API keys"),
    KeyFormat("napi_", rf"{_WORD}{{40,}}", "neon.com/docs: API keys"),
    KeyFormat("xau_", rf"{_WORD}{{24,}}", "xata.io/docs: API keys"),
    KeyFormat("CCDB1_", rf"{_WORD}{{20,}}_{_WORD}{{30,}}", "cockroachlabs.com/docs: service accounts"),
    KeyFormat("AVNS_", rf"{_URL_SAFE}{{16,}}", "aiven.io/docs: service passwords"),
    KeyFormat("cflt", rf"{_BASE64}{{60}}{_END}", "docs.confluent.io: API secrets"),
    KeyFormat("4b1d", rf"{_WORD}{{38}}{_END}", "clickhouse.com/docs/cloud: API keys"),
    KeyFormat("mdb_sa_sk_", rf"{_URL_SAFE}{{30,}}", "mongodb.com/docs/atlas: service accounts"),
    *(KeyFormat(f"dbt{kind}_", rf"{_URL_SAFE}{{24,}}", "docs.getdbt.com: access tokens") for kind in "uc"),
    KeyFormat("tsec_", rf"{_URL_SAFE}{{40,}}", "tigrisdata.com/docs: access keys"),
    KeyFormat("pat", rf"{_WORD}{{14}}\.{_LOWER_HEX}{{64}}", "airtable.com/developers: personal access tokens"),
    KeyFormat("CFPAT-", rf"{_URL_SAFE}{{30,}}", "contentful.com/developers: personal access tokens"),
    KeyFormat("aio_", rf"{_WORD}{{28}}{_END}", "io.adafruit.com/api/docs"),
    # -- what watches
    *(KeyFormat(f"gls{kind}_", r"[A-Za-z0-9+/=_]{24,}", "grafana.com/docs: service account tokens") for kind in "ac"),
    KeyFormat("glc_", r"[A-Za-z0-9+/=]{24,}", "grafana.com/docs: access policy tokens"),
    KeyFormat("eyJrIjoi", rf"{_WORD}{{60,}}=*", "grafana.com/docs: API keys before 2023"),
    *(
        KeyFormat(f"NR{kind}-", r"[A-Za-z0-9_-]{19,}", "docs.newrelic.com: API keys")
        for kind in ("AK", "II", "IQ", "JS", "RA")
    ),
    *(KeyFormat(f"sntry{kind}_", r"[A-Za-z0-9+/=_]{24,}", "docs.sentry.io: auth tokens") for kind in "su"),
    *(KeyFormat(f"ph{kind}_", rf"{_WORD}{{30,}}", "posthog.com/docs/api") for kind in "xcs"),
    KeyFormat("dt0", rf"(?:c01|s01|s02|s08|s16)\.{_UPPER}{{8,}}\.{_UPPER}{{60,}}", "docs.dynatrace.com: access tokens"),
    *(
        KeyFormat(f"hc{kind}_", rf"{_WORD}{{30,}}", "docs.honeycomb.io: API keys")
        for kind in ("aik", "alk", "amk", "xik")
    ),
    *(KeyFormat(f"xa{kind}t-", _UUID, "axiom.co/docs: tokens") for kind in "ap"),
    # -- money and goods
    *(
        KeyFormat(f"{kind}k_", rf"(?:live|test|prod)_{_WORD}{{16,}}", "docs.stripe.com/keys, docs.clerk.com")
        for kind in "spr"
    ),
    KeyFormat("pk_", rf"[0-9]{{6,}}_{_UPPER}{{32}}", "developer.clickup.com"),
    KeyFormat("whsec_", rf"{_BASE64}{{24,}}=*", "docs.stripe.com/webhooks"),
    KeyFormat("sq0", rf"(?:atp|csp|idp)-{_URL_SAFE}{{20,}}", "developer.squareup.com"),
    KeyFormat("EAA", rf"{_URL_SAFE}{{40,}}", "developer.squareup.com (EAAA), developers.facebook.com: access tokens"),
    KeyFormat("shp", rf"(?:at|ca|pa|ss|tka)_{_HEX}{{24,}}", "shopify.dev/docs/apps/auth"),
    KeyFormat("access-", rf"(?:production|development|sandbox)-{_UUID}", "plaid.com/docs: access tokens"),
    KeyFormat("duffel_", rf"(?:live|test)_{_URL_SAFE}{{30,}}", "duffel.com/docs"),
    KeyFormat("shippo_", rf"(?:live|test)_{_LOWER_HEX}{{30,}}", "docs.goshippo.com"),
    *(KeyFormat(f"EZ{kind}K", rf"{_WORD}{{54}}", "docs.easypost.com") for kind in "AT"),
    KeyFormat("FLWSECK", rf"(?:_TEST-|-){_WORD}{{12,}}", "developer.flutterwave.com"),
    KeyFormat("rzp_", rf"(?:live|test)_{_WORD}{{14,}}", "razorpay.com/docs: API keys"),
    KeyFormat("pdl_", r"(?:live|sdbx)_apikey_\w{30,}", "developer.paddle.com: API keys"),
    KeyFormat("polar_", rf"(?:pat|oat|whs)_{_WORD}{{30,}}", "polar.sh/docs: access tokens"),
    KeyFormat("live_", rf"(?:pub_|){_WORD}{{30,}}", "docs.mollie.com, docs.lob.com: API keys"),
    KeyFormat("test_", rf"(?:pub_|){_LOWER_HEX}{{31,}}", "docs.lob.com: API keys"),
    KeyFormat("live_", rf"{_URL_SAFE}{{40}}{_END}", "developer.gocardless.com"),
    KeyFormat("api_", rf"(?:live|sandbox)\.{_URL_SAFE}{{10,}}\.{_URL_SAFE}{{20,}}", "documentation.onfido.com"),
    KeyFormat("persona_", rf"(?:production|sandbox)_{_UUID}", "docs.withpersona.com"),
    KeyFormat("samsara_api_", rf"{_WORD}{{24,}}", "developers.samsara.com"),
    # -- messages, mail, people
    KeyFormat("xox", r"[a-z](?:\.xox[a-z])?-[A-Za-z0-9-]{16,}", "docs.slack.dev/authentication/tokens"),
    KeyFormat("xapp-", r"[A-Za-z0-9-]{16,}", "docs.slack.dev/authentication/tokens"),
    KeyFormat("hooks.slack.com/", r"(?:services|workflows|triggers)/[\w/+-]{16,}", "docs.slack.dev: incoming webhooks"),
    *(
        KeyFormat(f"{host}.com/api/webhooks/", rf"[0-9]{{16,}}/{_URL_SAFE}{{50,}}", "discord.com/developers: webhooks")
        for host in ("discord", "discordapp")
    ),
    *(
        KeyFormat(
            start, rf"{_URL_SAFE}{{20,26}}\.{_URL_SAFE}{{6}}\.{_URL_SAFE}{{27,}}", "discord.com/developers: bot tokens"
        )
        for start in ("MT", "MD", "Mj", "Mz", "ND", "NT", "Nj", "Nz", "OD", "OT")
    ),
    KeyFormat(
        "webhook.office.com/webhookb2/", r"[\w@-]{36,}/IncomingWebhook/[\w/-]{40,}", "learn.microsoft.com: Teams"
    ),
    KeyFormat("syt_", rf"{_WORD}{{2,}}_{_WORD}{{20}}_{_WORD}{{6}}", "spec.matrix.org; github.com/element-hq/synapse"),
    KeyFormat("SG.", rf"{_URL_SAFE}{{16,}}\.{_URL_SAFE}{{16,}}", "docs.sendgrid.com: API keys"),
    *(KeyFormat(f"{kind}key-", r"[0-9a-f]{32}(?![0-9A-Za-z])", "documentation.mailgun.com") for kind in ("", "pub")),
    *(
        KeyFormat(f"x{kind}sib-", rf"{_LOWER_HEX}{{40,}}-{_WORD}{{12,}}", "developers.brevo.com")
        for kind in ("key", "smtp")
    ),
    KeyFormat("re_", rf"{_WORD}{{8}}_{_WORD}{{20,}}", "resend.com/docs"),
    KeyFormat("SK", r"[0-9a-f]{32}(?![0-9A-Za-z])", "twilio.com/docs/iam/api-keys"),
    KeyFormat("IGQV", rf"{_URL_SAFE}{{50,}}", "developers.facebook.com: Instagram"),
    KeyFormat("pina_", rf"{_WORD}{{50,}}", "developers.pinterest.com"),
    KeyFormat("WPL_AP", r"[0-9]\.[A-Za-z0-9]{12,}\.?[A-Za-z0-9+/]*=*", "learn.microsoft.com/linkedin: client secrets"),
    KeyFormat("AAAAAAAAAAAAAAAAAAAA", rf"{_WORD}{{2,60}}%{_WORD}{{30,}}", "docs.x.com: bearer tokens"),
    KeyFormat("00D", rf"{_WORD}{{12,15}}!{_URL_SAFE}{{60,}}", "developer.salesforce.com: session ids"),
    KeyFormat("dG9rO", rf"{_BASE64}{{40,}}=*", "developers.intercom.com: access tokens"),
    KeyFormat("pat-", rf"(?:na|eu|ap)[0-9]-{_UUID}", "developers.hubspot.com: private apps"),
    KeyFormat("tfp_", rf"{_URL_SAFE}{{40,}}", "typeform.com/developers"),
    KeyFormat("sl.", rf"{_URL_SAFE}{{100,}}", "dropbox.com/developers: short-lived tokens"),
    # -- plans and drawings
    KeyFormat("lin_", rf"(?:api|oauth|wh)_{_WORD}{{20,}}", "linear.app/developers"),
    KeyFormat("ntn_", rf"{_WORD}{{20,}}", "developers.notion.com"),
    KeyFormat("secret_", rf"{_WORD}{{40,}}", "developers.notion.com: before 2024"),
    KeyFormat("figd_", rf"{_URL_SAFE}{{20,}}", "figma.com/developers/api"),
    KeyFormat("cnvca", rf"{_URL_SAFE}{{40,}}", "canva.dev/docs: client secrets"),
    KeyFormat("fio-u-", rf"{_URL_SAFE}{{40,}}", "developer.frame.io"),
    *(
        KeyFormat(f"{kind}k.", rf"eyJ{_URL_SAFE}{{40,}}\.{_URL_SAFE}{{20,}}", "docs.mapbox.com: access tokens")
        for kind in "sp"
    ),
    *(KeyFormat(f"li{kind}_", rf"{_WORD}{{20}}{_END}", "lichess.org/api") for kind in "po"),
    KeyFormat("tss_", rf"{_WORD}{{36,}}", "thunderstore.io/api/docs"),
    *(KeyFormat(f"sm_{kind}at_", rf"{_WORD}{{16,}}", "console.settlemint.com/documentation") for kind in "aps"),
    *(KeyFormat(f"s-s4t2{kind}-", rf"{_LOWER_HEX}{{60,}}", "api.intra.42.fr/apidoc") for kind in ("ud", "af")),
    KeyFormat(
        "eyJ",
        rf"{_URL_SAFE}{{8,}}\.eyJ{_URL_SAFE}{{8,}}\.{_URL_SAFE}*|(?P<{NO_KEY}>{_URL_SAFE}*+)",
        "RFC 7519: JSON Web Token",
    ),
)
