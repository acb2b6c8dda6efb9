"""Short conversations for a small set of real states; the answers are this project's own prose."""

from __future__ import annotations

from pathlib import Path

LICENSE = Path(__file__).resolve().parents[2] / "LICENSE"
WORDS_OF_A_CHUNK = 75

ANSWERS = {
    "Why does bread rise?": "Yeast eats the sugars in the dough and gives off carbon dioxide. The "
    "gluten in the flour forms a stretchy net that holds the bubbles, so the dough grows. In the "
    "oven the gas expands once more, the water turns to steam, and the starch sets before the "
    "bubbles can collapse. Without salt the yeast works too fast and the crumb tears.",
    "How does a bicycle stay upright?": "A moving bicycle falls to one side like a still one, but "
    "the front wheel turns towards the side that it falls to. The turn moves the wheels back under "
    "the rider, and the fall ends. Riders do the same with the handlebars without noticing it. The "
    "faster the bicycle goes, the smaller the turn that is needed to bring it back.",
    "What is a hash table?": "A hash table keeps pairs of keys and values in an array. A function "
    "turns each key into a number, and the number says where in the array the pair goes. When two "
    "keys land in the same place, the table keeps a short list there or looks at the next free "
    "place. Looking a key up takes the same time however many keys there are.",
    "Tell me about the tides.": "The moon pulls the water on the near side of the earth more than "
    "the earth itself, and the earth more than the water on the far side. So there are two bulges "
    "of water, and the earth turns under them once a day. That is why most coasts see two high "
    "tides a day. At full and new moon the sun pulls along the same line and the tides are higher.",
    "How do I sharpen a kitchen knife?": "Lay the stone on a wet cloth so that it does not slip. "
    "Hold the blade at about fifteen degrees and push it over the stone as if you wanted to slice "
    "off a thin layer. Do ten strokes on one side, then ten on the other. When you feel a small "
    "burr along the edge, take a finer stone, and finish on a strip of leather.",
    "Why is the sky blue?": "Sunlight holds all colours. The molecules of the air scatter short "
    "waves far more than long ones, so blue light reaches us from every direction while red light "
    "goes nearly straight on. In the evening the light travels through much more air, the blue is "
    "lost on the way, and what arrives at the horizon is orange and red.",
    "What should I plant in a shady garden?": "Ferns and hostas like shade and moist ground. For "
    "flowers in spring plant snowdrops and wood anemones under the trees, where they bloom before "
    "the leaves come out. Ivy covers bare ground in a few years, but it has to be cut back. Water "
    "the young plants well in the first summer, since the roots of the trees drink first.",
    "Explain recursion to a child.": "Imagine that you stand in a long line and want to know your "
    "place in it. You ask the person in front of you, and that person asks the next one, and so on "
    "until the first one says: I am number one. Then the answer travels back, and each adds one. "
    "You asked a question that was answered by asking the same question, only a smaller one.",
    "How was paper made by hand?": "Old linen rags were beaten in water until only fibres were "
    "left. The maker dipped a sieve into the vat and lifted it out level, and the water ran off "
    "while the fibres lay down on the wires. The wet sheet was turned over on felt, pressed with "
    "others under a screw, and hung up to dry in the loft.",
    "What do bees do in winter?": "They do not sleep. When it grows cold they gather in a ball "
    "round the queen and shiver with the muscles of their wings, which keeps the middle of the "
    "ball warm. The bees at the outside move in after a while and others take their place. They "
    "live on the honey of the summer, and a beekeeper leaves them enough of it.",
    "Give me a plan for learning the piano.": "Practise twenty minutes every day rather than two "
    "hours on Sunday. Spend the first five minutes on scales, slowly and with even fingers. Then "
    "take four bars of a piece that you like, learn each hand alone, and put them together. End "
    "with something that you can play already. After a month, record yourself and listen to it.",
    "What is inflation?": "Inflation means that the same money buys less than before. It can come "
    "from the side of demand, when people want to buy more than there is, or from the side of "
    "costs, when energy or wages grow dearer. Central banks raise the rate of interest to slow it "
    "down, because borrowing then costs more and people spend less.",
    "How do vaccines work?": "A vaccine shows the body a harmless part of a germ. Some cells learn "
    "to recognise that part and remain in the blood for years. When the real germ arrives, they "
    "multiply at once and make antibodies before it can spread. That is why a vaccinated person "
    "is often not ill at all, or only for a short time.",
    "Describe a walk along the harbour.": "The boats knock softly against the wall, and ropes "
    "creak. A man in a yellow coat mends a net on the steps and does not look up. It smells of tar "
    "and coffee. Further out the ferry sounds its horn twice, the gulls rise, and for a moment the "
    "whole sky is white and loud before they settle on the roofs again.",
    "Why do we have leap years?": "The earth needs a little less than three hundred and sixty five "
    "and a quarter days for its way round the sun. So every fourth year gets one more day. That is "
    "slightly too much, and therefore years that divide by one hundred are no leap years, unless "
    "they divide by four hundred too. The year two thousand was one.",
    "How do I write a good email?": "Put what you want in the first sentence. Say until when you "
    "need it, and why. One subject a message is enough, and a list is easier to answer than a long "
    "paragraph. Read it once more before you send it, and take out every word that does not help. "
    "If you are angry, wait until tomorrow.",
    "How does a refrigerator cool?": "A pump presses a gas together, which makes it hot, and the "
    "heat leaves through the black pipes at the back. The gas becomes liquid, passes a narrow "
    "valve, and expands inside the box. Expanding makes it very cold, so it takes up the heat of "
    "the food. Then it flows back to the pump, and the circle begins again.",
    "What makes a good map?": "A good map leaves things out. It shows what its reader needs, at a "
    "scale that fits the purpose, and uses few colours that mean one thing each. The names must "
    "not cover the roads. A hiker wants lines of equal height, a driver wants numbers of roads, "
    "and neither wants both at once.",
}


def conversations() -> list[list[dict[str, str]]]:
    """Questions with an answer, and pieces of the licence with a question about each."""
    words = LICENSE.read_text().split()
    chunks = [
        " ".join(words[start : start + WORDS_OF_A_CHUNK])
        for start in range(0, len(words) - WORDS_OF_A_CHUNK, WORDS_OF_A_CHUNK)
    ]
    pairs = [
        *ANSWERS.items(),
        *((f"What does part {at} of the licence say?", chunk) for at, chunk in enumerate(chunks)),
    ]
    return [
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        for question, answer in pairs
    ]
