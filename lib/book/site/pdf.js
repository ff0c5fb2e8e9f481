// What the browser runs to print the book: `lib.book.site.pdf` calls these in the pages of the site.

// Runs in the first page and puts the articles of all pages into the place of its own. Names get the page's name in
// front, so that each is there once (not within pictures, and not that of the ledger's table, which the style sheet
// knows); a link to a page leads to its place in the whole, one to another file nowhere.
const compose = async listed => {
    const known = new Set(listed.map(([, , name]) => `/${name}.html`));
    const whole = document.querySelector("article.bd-article"), main = document.querySelector("main");
    const contents = document.createElement("ol"), cover = document.createElement("header");
    const running = document.head.appendChild(document.createElement("style"));
    const [title, footer] = ["h1", ".bd-footer-content__inner"].map(one => document.querySelector(one));
    cover.className = "cover";
    cover.innerHTML = `<p class="title">${title.firstChild.textContent}</p>${footer.innerHTML}`;
    whole.replaceChildren();
    for (const [number, [level, part, name]] of listed.entries()) {
        const home = new URL(`/${name}.html`, location);
        const page = new DOMParser().parseFromString(await (await fetch(home)).text(), "text/html");
        const article = page.querySelector("article.bd-article");
        for (const one of article.querySelectorAll("script, .headerlink")) one.remove();
        for (const one of article.querySelectorAll("[id]:not(#ledger, svg *)")) one.id = `${name}/${one.id}`;
        for (const image of article.querySelectorAll("img")) image.src = new URL(image.getAttribute("src"), home);
        for (const link of article.querySelectorAll("a[href]")) {
            const url = new URL(link.getAttribute("href"), home);
            if (known.has(url.pathname)) link.href = `#${url.pathname.slice(1, -5)}${url.hash.replace("#", "/")}`;
            else if (url.origin === home.origin) link.removeAttribute("href");
        }
        for (const heading of article.querySelectorAll("h1, h2, h3, h4, h5"))
            heading.ariaLevel = Math.min(6, level - 1 + Number(heading.tagName[1]));
        const own = article.querySelector("h1");
        if (part) {
            own.insertAdjacentHTML("beforebegin", `<h1 class="part" aria-level="1">${part}</h1>`);
            contents.insertAdjacentHTML("beforeend", `<li class="part">${part}</li>`);
        }
        contents.insertAdjacentHTML("beforeend", `<li><a href="#${name}">${own.innerHTML}</a><span></span></li>`);
        running.append(`@page p${number} { @top-right { content: ${JSON.stringify(own.textContent)} } }\n`);
        whole.insertAdjacentHTML("beforeend",
            `<section id="${name}" style="page: p${number}">${article.innerHTML}</section>`);
    }
    cover.append(contents);
    document.body.replaceChildren(cover, main);
    await MathJax.typesetPromise();
    await Promise.all([...document.images].map(image =>
        image.complete || new Promise(done => image.onload = image.onerror = done)));
    return [...whole.querySelectorAll("h1, h2, h3, h4, h5")].map(one => one.textContent);
};

// Makes formulas that are wider than the page as small as it takes, and says what still sticks out.
const fit = () => {
    for (const formula of document.querySelectorAll('mjx-container[display="true"]')) {
        const share = formula.clientWidth / (formula.scrollWidth + 1);
        const size = parseFloat(getComputedStyle(formula).fontSize);
        if (formula.scrollWidth > formula.clientWidth + 1)
            formula.style.setProperty("font-size", `${share * size}px`, "important");
    }
    const edge = document.querySelector(".bd-article").getBoundingClientRect().right + 1;
    return [...document.querySelectorAll(".bd-article *:not(mjx-assistive-mml, mjx-assistive-mml *, svg *)")]
        .filter(one => one.getBoundingClientRect().right > edge).map(one => one.outerHTML.slice(0, 160));
};

// Leaves of the book its first sheets alone, and of these the numbers in the contents.
const numbers = leaves => {
    document.querySelector("main").remove();
    document.head.insertAdjacentHTML("beforeend", `<style>
        @page { @bottom-center { content: none } } .cover { visibility: hidden } .cover span { visibility: visible }
    </style>`);
    for (const link of document.querySelectorAll(".cover a")) {
        link.nextElementSibling.textContent = leaves[`/${link.hash.slice(1)}`];
        link.removeAttribute("href");
    }
};

// Lays a page out in three columns of one sheet of A2, with letters as large as it takes.
const poster = async () => {
    const { documentElement: root, images } = document;
    const article = document.querySelector("article.bd-article");
    for (const one of article.querySelectorAll(".run-note, .headerlink")) one.remove();
    article.querySelector("h1").textContent = document.title.replace(/^.* \u2014 /, "");
    document.body.replaceChildren(document.querySelector("main"));
    root.classList.add("poster");
    await Promise.all([...images].map(image =>
        image.complete || new Promise(done => image.onload = image.onerror = done)));
    let [fits, over] = [8, 40];
    while (over - fits > 0.02) {
        const size = (fits + over) / 2;
        root.style.fontSize = `${size}px`;
        if (article.scrollWidth > article.clientWidth) over = size;
        else fits = size;
    }
    root.style.fontSize = `${0.98 * fits}px`; // print breaks a few lines elsewhere
};
