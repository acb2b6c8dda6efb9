"""Sentences of our own in languages that the small model hardly knows."""

from __future__ import annotations

GERMAN = (
    "Der Müller steht vor seiner Tür und wartet auf den Wind, der das große Rad drehen soll.",
    "Im Herbst sammeln die Kinder Kastanien und bauen daraus kleine Tiere mit Beinen aus Holz.",
    "Die Straßenbahn hält an der alten Brücke, weil der Fahrer einen Hund auf den Gleisen sieht.",
    "Wer früh aufsteht, hört die Amseln singen, bevor die ersten Autos durch die Stadt fahren.",
    "Meine Großmutter kochte die Pflaumen mit Zimt und füllte sie in Gläser für den Winter.",
    "Das Wasser im Kanal ist so still, dass sich die Häuser darin spiegeln wie auf einem Bild.",
    "Ein guter Schreiner prüft das Holz mit der Hand, denn das Auge übersieht die feinen Risse.",
    "Am Abend schließt der Bäcker den Laden und verschenkt die letzten Brötchen an die Nachbarn.",
    "Die Lehrerin erklärte, warum der Mond manchmal rund und manchmal nur eine Sichel ist.",
    "Auf dem Dachboden fanden wir eine Kiste mit Briefen, die niemand mehr lesen konnte.",
    "Der Zug fährt durch einen langen Tunnel, und für einige Minuten sieht man nur sich selbst.",
    "Wenn es regnet, riecht der Garten nach Erde, und die Schnecken kommen unter Blättern hervor.",
    "Zwei Männer spielen Schach im Park und reden kein Wort, bis einer von ihnen lächelt.",
    "Die Werkstatt liegt im Hof, und man erkennt sie am Geruch von Öl und frischem Leder.",
    "Er schrieb jeden Morgen drei Sätze in ein Heft und strich am Abend zwei davon durch.",
    "Der Leuchtturm ist seit Jahren unbewohnt, aber sein Licht brennt noch immer jede Nacht.",
    "Im Museum hängt ein Bild, das keiner mag und das trotzdem niemand abnehmen will.",
    "Die Schafe ziehen im Mai auf die Alm und kommen erst zurück, wenn der erste Schnee fällt.",
)

RUSSIAN = (
    "Старик сидел у окна и смотрел, как снег медленно ложится на крыши соседних домов.",
    "Весной река поднимается так высоко, что мост приходится закрывать на целую неделю.",
    "Мальчик нашёл в лесу потерянный ключ и решил, что он открывает какую-то тайную дверь.",
    "Поезд пришёл рано утром, и на пустом вокзале его встретила только рыжая собака.",
    "Бабушка говорила, что хороший суп нельзя варить быстро и нельзя варить без песни.",
    "В библиотеке тихо, слышно только, как кто-то переворачивает страницы старой книги.",
    "Мой сосед каждый вечер чинит один и тот же велосипед и никогда на нём не ездит.",
    "Осенью мы собирали грибы, и корзина к обеду становилась тяжёлой и пахла землёй.",
    "Художник поставил холст у моря, но ветер всё время уносил его шляпу и кисти.",
    "Учитель попросил нас написать письмо самому себе и открыть его через десять лет.",
    "На рынке продают мёд, яблоки и шерстяные носки, которые вяжут зимой в деревне.",
    "Когда погас свет, все замолчали, а потом кто-то засмеялся и зажёг свечу.",
)

CHINESE = (
    "村口的老槐树下,几个老人每天下午都在那里下棋喝茶。",
    "春天来了,河边的柳树长出了嫩绿的叶子,孩子们放起了风筝。",
    "我的爷爷会修钟表,他的桌子上总是放着很多小小的齿轮。",
    "下雨的时候,街上的行人很少,只有卖伞的人还在大声叫卖。",
    "她把信放进抽屉里,过了三年才有勇气再把它打开来看。",
    "火车穿过长长的隧道,窗外突然出现了一片蓝色的大海。",
    "厨师说,好的面条要用冷水过一遍,这样吃起来才有嚼劲。",
    "山上的寺庙很安静,早晨只能听见钟声和鸟叫的声音。",
    "弟弟在沙滩上堆了一座城堡,可是海浪很快就把它冲走了。",
    "图书馆里的那盏灯总是亮到深夜,好像有人一直在读书。",
    "冬天的市场里,卖红薯的小车旁边总是围着一圈取暖的人。",
    "老师让我们闭上眼睛,想象自己站在一片很大的麦田里。",
)
