"""The texts that are built in, over several kinds of text and many scripts: for where the configuration names none, or too few."""

from __future__ import annotations

BUILT_IN = (
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "The lighthouse keeper climbed the stairs every evening, and",
    "User: What is the capital of Portugal?\nAssistant:",
    "Größe und Gewicht: 12 µm × 3 €, naïve café – «проверка» 東京",
    "import json\n\nwith open(path) as stream:\n    data =",
    "Q: A train leaves at 9:40 and arrives at 11:15. How long is the journey?\nA:",
    "# Shopping list\n\n- bread\n- apples\n-",
    "SELECT name, count(*) FROM orders WHERE year = 2024 GROUP BY",
    "In 1905 a clerk at the patent office published four papers;",
    '{"name": "sensor-7", "unit": "°C", "values": [21.5, 21.7,',
    "Once upon a time there was a small boat that",
    "Traduis en français : « Good morning, how are you? »\nRéponse :",
)
"""Code, prose, dialogue, figures, markup and several scripts, ordered so that few samples already mix them."""

FURTHER = (
    "The committee will meet again on Thursday to decide whether the bridge should be repaired this year or replaced in the next one.",
    "from collections import Counter\n\n\ndef most_common(words: list[str], count: int = 10) -> list[str]:\n    return [word for word, _ in"
    " Counter(words).most_common(count)]\n",
    "Am Morgen lag Nebel über dem Fluss, und die Fähre fuhr erst eine Stunde später als sonst. Niemand beschwerte sich.",
    "La bibliothèque ouvre à neuf heures ; les livres empruntés doivent être rendus avant la fin du mois.",
    "El tren de las siete llegó con retraso porque una tormenta había dañado la línea entre las dos ciudades.",
    "Il mercato si tiene ogni sabato nella piazza vecchia: frutta, formaggi, fiori e qualche libro usato.",
    "A reunião foi adiada para a próxima semana, porque metade da equipa está de férias.",
    "Поезд отправляется в половине восьмого утра, поэтому нам лучше выйти из дома заранее.",
    "Η θάλασσα ήταν ήρεμη εκείνο το πρωί και τα καΐκια γύριζαν αργά στο λιμάνι.",
    "今天下午两点开会，请大家提前十分钟到会议室，并带上上个月的报告。",
    "図書館は月曜日が休みです。本を返すときは、入口の横にある箱に入れてください。",
    "내일 아침에 비가 올 것 같으니 우산을 가지고 나가는 것이 좋겠습니다.",
    "يفتح المتحف أبوابه من التاسعة صباحا حتى الخامسة مساء، ما عدا يوم الاثنين.",
    "הרכבת האחרונה יוצאת בשעה אחת עשרה, ולכן כדאי לסיים את הארוחה מוקדם.",
    "कल शाम को बाज़ार में बहुत भीड़ थी, इसलिए हम जल्दी घर लौट आए।",
    "ตลาดเปิดทุกเช้าวันเสาร์ มีผลไม้สดและดอกไม้จากสวนใกล้เมือง",
    "Chiều nay trời mưa to, nên trận đấu bóng đá của trường được hoãn đến tuần sau.",
    "Dün akşam elektrikler kesildi; mum ışığında oturup eski hikâyeler anlattık.",
    "Pociąg spóźnił się o czterdzieści minut, więc na stacji zdążyliśmy jeszcze wypić herbatę.",
    "নদীর ধারে ছেলেরা ঘুড়ি ওড়াচ্ছিল, আর দূরে একটি নৌকা ধীরে ধীরে চলছিল।",
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n  <title>Opening hours</title>\n</head>\n'
    "<body>\n  <p>Open from 9 to 5.</p>\n</body>\n</html>",
    'for file in *.log; do\n  grep -c ERROR "$file" | sed "s/^/$file: /"\ndone | sort -t: -k2 -n | tail -5',
    "Dear Ms. Alvarez,\n\nThank you for your letter of 3 March. We have received the documents and will answer within ten days.\n\nYours"
    " sincerely,",
    "User: How long do I boil an egg?\nAssistant: About seven minutes for a soft yolk, and ten for a firm one. Put it into cold water"
    " afterwards.",
    "| month | rain (mm) | sunny hours |\n| --- | ---: | ---: |\n| May | 61 | 214 |\n| June | 74 | 227 |\n| July | 82 | 241 |",
    "Let x and y be real numbers with x + y = 10 and xy = 21. Then x² + y² = (x + y)² − 2xy = 100 − 42 = 58.",
    '#include <stdio.h>\n\nint main(void)\n{\n    for (int i = 0; i < 10; i++)\n        printf("%d squared is %d\\n", i, i * i);\n'
    "    return 0;\n}",
    "Water boils at a lower temperature on a mountain than at the sea, since the air presses on it less.",
)
"""More of them, which are never compared on: what calibration falls back to."""
