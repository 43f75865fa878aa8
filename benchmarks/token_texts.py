"""Texts of many kinds, for tokens.py and the tests: prose written for this file, code of this repository and of
Python's own library, and data made from a seed."""

from __future__ import annotations

import base64
import json
import string
import unicodedata
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]

PROSE: Final = {
    "English": """The bridge across the river was closed last winter, after an engineer had found a crack in one of
its piers. Since then the people of the two villages have had to take the ferry, which runs only twice a day
and not at
all when the water is high. Some have begun to work from home; others have sold their houses and moved to the
city. The
council says that repairs will take until autumn, provided that the money which was promised is paid. "We have heard
that before," says the owner of the bakery, who lost half of her customers within a month, "and we will believe
it when
we can walk across." Meanwhile the school has been given two boats of its own, and the children like them very
much.""",
    "Chinese": """去年冬天，一位工程师在桥墩上发现了裂缝，于是这座跨河大桥被关闭了。从那以后，两个村子的居民只能
乘坐渡船，而渡船每天
只开两班，水位高的时候根本不开。有些人开始在家里工作，也有人卖掉房子搬到了城里。镇政府表示，如果承诺的资金能够按
时到位，维修工作
将持续到秋天。“这样的话我们以前也听过，”面包店的老板娘说，她在一个月之内失去了一半的顾客，“等我们真的能走过桥去
，才会相信。”与此
同时，学校得到了两条属于自己的小船，孩子们非常喜欢。每天早晨，他们穿着橙色的救生衣，唱着歌渡过河去，老师站在岸边
一个一个地数人数。
傍晚时分，河面上起了薄雾，对岸的灯光显得格外遥远。老人们坐在茶馆里，谈论着修桥的年代，那时候所有的石头都是用手推
车运来的。""",
    "Traditional Chinese": """去年冬天，一位工程師在橋墩上發現了裂縫，於是這座跨河大橋被關閉了。從那以後，兩個村
子的居民只能搭乘渡船，
而渡船每天只開兩班，水位高的時候根本不開。有些人開始在家裡工作，也有人賣掉房子搬到了城裡。鎮公所表示，如果承諾的
經費能夠按時
撥下來，維修工程將持續到秋天。「這樣的話我們以前也聽過，」麵包店的老闆娘說，她在一個月之內失去了一半的顧客，「等
我們真的能走過
橋去，才會相信。」與此同時，學校得到了兩艘屬於自己的小船，孩子們非常喜歡，每天早晨都唱著歌渡過河去。""",
    "Japanese": """昨年の冬、橋脚のひとつにひび割れが見つかったため、川にかかる橋は通行止めになった。それ以来、
二つの村の人々は渡し船を
使うしかないが、船は一日に二便しかなく、水かさが増えるとまったく動かない。在宅で働きはじめた人もいれば、家を売っ
て町へ引っ越した
人もいる。役場によると、約束された予算が出れば、修理は秋までかかるという。「そんな話は前にも聞きました」と、ひと
月で客の半分を失った
パン屋の主人は言う。「歩いて渡れるようになったら信じますよ。」一方、学校には専用のボートが二そう与えられ、子ども
たちは大喜びだ。
毎朝、オレンジ色のライフジャケットを着て、歌いながら川を渡る。先生は岸に立って、ひとりずつ人数を数えている。""",
    "Korean": """지난겨울 한 기술자가 교각에서 균열을 발견한 뒤로 강을 건너는 다리가 폐쇄되었다. 그때부터 두 마
을 사람들은 하루에 두 번밖에
다니지 않는 나룻배를 타야 하는데, 물이 불어나면 배는 아예 뜨지 않는다. 어떤 사람들은 집에서 일하기 시작했고, 어
떤 사람들은 집을
팔고 도시로 떠났다. 면사무소는 약속된 예산이 나오기만 하면 가을까지 수리를 마치겠다고 한다. “그런 말은 전에도 들
었어요.” 한 달 만에
손님의 절반을 잃은 빵집 주인이 말한다. “걸어서 건널 수 있게 되면 그때 믿을게요.” 한편 학교에는 배 두 척이 생겼고
 아이들은 무척 좋아한다.""",
    "Arabic": """أُغلق الجسر فوق النهر في الشتاء الماضي بعد أن اكتشف مهندس شقًا في إحدى دعائمه. ومنذ ذلك الحين
يضطر أهل القريتين إلى
ركوب العبّارة التي لا تعمل إلا مرتين في اليوم، ولا تعمل مطلقًا عندما يرتفع منسوب المياه. بدأ بعضهم العمل من
المنزل، وباع آخرون بيوتهم
وانتقلوا إلى المدينة. ويقول المجلس إن الإصلاحات ستستمر حتى الخريف إذا دُفعت الأموال التي وُعد بها. تقول صاحبة
المخبز التي فقدت نصف
زبائنها خلال شهر واحد: لقد سمعنا هذا الكلام من قبل، وسنصدقه عندما نعبر الجسر سيرًا على الأقدام.""",
    "Hindi": """पिछली सर्दियों में एक इंजीनियर को पुल के एक खंभे में दरार मिली, जिसके बाद नदी पर बना पुल बंद कर
दिया गया। तब से दोनों गाँवों के लोगों
को नाव से जाना पड़ता है, जो दिन में केवल दो बार चलती है और पानी बढ़ने पर बिल्कुल नहीं चलती। कुछ लोग घर से काम
करने लगे हैं, और कुछ अपने मकान
बेचकर शहर चले गए हैं। पंचायत का कहना है कि अगर वादा किया गया पैसा मिल गया तो मरम्मत शरद ऋतु तक चलेगी। बेकरी की
मालकिन, जिसने एक महीने में अपने
आधे ग्राहक खो दिए, कहती है कि यह बात हमने पहले भी सुनी है, और जब पुल पर चलकर पार जाएँगे तभी मानेंगे।""",
    "Thai": """เมื่อฤดูหนาวที่แล้ววิศวกรพบรอยร้าวที่เสาต้นหนึ่งของสะพาน สะพานข้ามแม่น้ำจึงถูกปิด
ตั้งแต่นั้นมาชาวบ้านของทั้งสองหมู่บ้านต้องนั่งเรือข้ามฟาก
ซึ่งวิ่งเพียงวันละสองเที่ยว และไม่วิ่งเลยเมื่อน้ำขึ้นสูง บางคนเริ่มทำงานที่บ้าน บางคนขายบ้านแล้วย้ายเข้าเมือง
เทศบาลบอกว่าการซ่อมแซมจะใช้เวลาถึงฤดูใบไม้ร่วง
หากได้รับเงินตามที่สัญญาไว้ เจ้าของร้านขนมปังซึ่งเสียลูกค้าไปครึ่งหนึ่งภายในหนึ่งเดือนบอกว่า
เราเคยได้ยินเรื่องนี้มาก่อนแล้ว""",
    "Russian": """Прошлой зимой инженер обнаружил трещину в одной из опор, и мост через реку закрыли. С тех пор
жителям двух деревень
приходится ездить на пароме, который ходит всего два раза в день, а в половодье не ходит вовсе. Кто-то начал
работать из дома, а кто-то
продал дом и переехал в город. В администрации говорят, что ремонт продлится до осени, если обещанные деньги
будут выплачены. «Это мы уже
слышали, — говорит хозяйка пекарни, потерявшая за месяц половину покупателей, — поверим, когда перейдём реку
пешком». Тем временем школе
дали две собственные лодки, и детям они очень нравятся.""",
    "German": """Im vergangenen Winter wurde die Brücke über den Fluss gesperrt, nachdem ein Ingenieur in einem
der Pfeiler einen Riss
entdeckt hatte. Seitdem müssen die Bewohner der beiden Dörfer die Fähre nehmen, die nur zweimal täglich
verkehrt und bei Hochwasser
überhaupt nicht. Manche arbeiten inzwischen zu Hause, andere haben ihre Häuser verkauft und sind in die Stadt
gezogen. Die Gemeinde sagt,
die Instandsetzung werde bis zum Herbst dauern, sofern die zugesagten Fördermittel ausgezahlt werden.""",
    "French": """L'hiver dernier, le pont qui enjambe la rivière a été fermé, un ingénieur ayant découvert une
fissure dans l'une de ses
piles. Depuis, les habitants des deux villages doivent prendre le bac, qui ne passe que deux fois par jour, et
pas du tout lorsque l'eau
est haute. Certains travaillent désormais chez eux ; d'autres ont vendu leur maison et sont partis en ville. La
mairie assure que les
travaux dureront jusqu'à l'automne, à condition que l'argent promis soit versé.""",
}  # fmt: skip
_FAMILIES: Final = (
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\U0001f469\U0001f3fd\u200d\U0001f4bb",
    "\U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001f44d\U0001f3ff",
    "\U0001f1ef\U0001f1f5",
    "1\ufe0f\u20e3",
    "\u2764\ufe0f\u200d\U0001f525",
)
_EMOJI: Final = [
    character
    for first, last in ((0x1F300, 0x1F650), (0x1F680, 0x1F700), (0x1F900, 0x1FA00), (0x2600, 0x27C0))
    for character in map(chr, range(first, last))
    if unicodedata.category(character) == "So"
]
_UNASSIGNED: Final = [chr(code) for code in range(0x50000, 0x50400)] + [
    chr(code) for code in range(0x0378, 0x2FF0) if unicodedata.category(chr(code)) == "Cn"
]
_WORDS: Final = [
    "request",
    "worker",
    "queue",
    "timeout",
    "user",
    "session",
    "cache",
    "index",
    "block",
    "retry",
    "socket",
    "buffer",
]


def _many(make: Callable[[], str], count: int, between: str = "") -> str:
    return between.join(make() for _ in range(count))


def _code(pattern: str) -> str:
    """Some kB of the files of this repository."""
    files = sorted(REPOSITORY.glob(pattern))
    return "\n".join(path.read_text() for path in files)[:40_000]


def _library(module: str) -> str:
    return Path(str(__import__(module).__file__)).read_text()[:20_000]


def _record(random: Random) -> dict[str, object]:
    return {
        "id": random.randrange(10**6),
        "name": random.choice(_WORDS),
        "price": round(random.random() * 100, 2),
        "active": random.random() < 0.5,
        "tags": random.sample(_WORDS, 2),
        "owner": None,
    }


def _log_line(random: Random) -> str:
    day, hour, thousandth = random.randrange(1, 29), random.randrange(24), random.randrange(1000)
    at = f"2026-11-{day:02}T{hour:02}:07:59.{thousandth:03}Z"
    called = uuid.UUID(int=random.getrandbits(128))
    what = f"{random.choice(_WORDS)}={random.randrange(10**4)} {random.choice(_WORDS)} took {random.random():.3f}s"
    return f"{at} {random.choice(['INFO', 'WARNING'])} [{random.randrange(999)}] {called} {what}"


def _address(random: Random) -> str:
    path = "/".join(random.choices(_WORDS, k=3))
    key = "".join(random.choices(string.ascii_letters + string.digits, k=12))
    return f"https://www.example.com/{path}/{key}?page={random.randrange(99)}&lang=en#{random.choice(_WORDS)}"


def _in_one_line(source: str) -> str:
    return "".join(line.strip() for line in source.splitlines() if not line.strip().startswith("#"))


def texts(seed: int = 0) -> Iterator[tuple[str, str]]:
    """Kind and text, the same for the same seed."""
    random = Random(seed)
    data = random.randbytes(6_000)
    records = [_record(random) for _ in range(80)]
    yield from PROSE.items()
    yield "Python", _code("actors/calls/*.py")
    yield "Python library", _library("textwrap") + _library("argparse")
    yield "code in one line", _in_one_line(_code("actors/kernel/*.py"))
    yield "Markdown", _code("docs/*.md")
    yield "JSON", json.dumps(records)
    yield "JSON, indented", json.dumps(records, indent=2)
    yield "base64", base64.b64encode(data).decode()
    yield "base64 in lines", base64.encodebytes(data).decode()
    yield "hex", data.hex()
    yield "hex dump", "\n".join(data[at : at + 16].hex(" ") for at in range(0, len(data), 16))
    yield "UUIDs", _many(lambda: str(uuid.UUID(int=random.getrandbits(128))), 120, "\n")
    yield "numbers, CSV", _many(lambda: ",".join(f"{random.gauss(0, 100):.3f}" for _ in range(8)), 120, "\n")
    yield "numbers, table", _many(lambda: "".join(f"{random.randrange(10**6):10}" for _ in range(8)), 90, "\n")
    yield "digits", "".join(random.choices(string.digits, k=5_000))
    yield "emoji", "".join(random.choices(_EMOJI, k=1_500))
    yield "emoji, joined", "".join(random.choices(_FAMILIES, k=800))
    yield "log", _many(lambda: _log_line(random), 60, "\n")
    yield "URLs", _many(lambda: _address(random), 60, "\n")
    yield "indented lines", _many(lambda: " " * random.randrange(0, 40, 4) + random.choice(_WORDS), 400, "\n")
    yield "random letters", "".join(random.choices(string.ascii_lowercase, k=5_000))
    yield "random ASCII", "".join(random.choices(string.printable[:95], k=5_000))
    yield "private use", "".join(chr(random.randrange(0xE000, 0xF900)) for _ in range(1_500))
    yield "unassigned", "".join(random.choices(_UNASSIGNED, k=1_500))
    yield "rare Chinese", "".join(chr(random.randrange(0x4E00, 0xA000)) for _ in range(1_500))
    yield "box drawing", "\n".join("│   " * random.randrange(4) + "├── " + random.choice(_WORDS) for _ in range(300))
