// The entry: the frame of the application, and which page an address shows.
import { ApiError, getSession, isReport } from "./api.js";
import { button, el, fill, link, nothing } from "./dom.js";
import { listenToKeys, setPageKeys, showKeys } from "./keys.js";
import { stopChanges } from "./live.js";
import { showBeside, showCompare } from "./page_compare.js";
import { showEnv, showEnvs } from "./page_envs.js";
import { showRollouts, showTasks } from "./page_lists.js";
import { showRl } from "./page_rl.js";
import { showRollout } from "./page_rollout.js";
import { showRun, showSettings } from "./page_run.js";
import { showRuns } from "./page_runs.js";
import { showSkill } from "./page_skill.js";
import { showStart } from "./page_start.js";
import { go, makeHref, readPlace } from "./router.js";
import { runHref } from "./shared.js";
import { makeThemeSwitch } from "./theme.js";

/** @typedef {import("./shared.js").ShownPage} ShownPage */

const EVERYWHERE = [
  { key: "g", text: "list of runs", run: () => go(makeHref(["runs"])) },
  { key: "x", text: "environments", run: () => go(makeHref(["envs"])) },
];

/** @type {ShownPage | null} */
let shownPage = null;
let showing = 0;

/**
 * @param {HTMLElement} root
 * @param {import("./model.js").ViewSession} session
 * @returns {Promise<ShownPage>}
 */
async function choosePage(root, session) {
  const place = readPlace();
  const [page = "", name = "", tab = "", last = ""] = place.path;
  if (page === "" && session.single) return showRun(root, session.single);
  if (page === "" || page === "runs") return showRuns(root, place, session);
  if (page === "compare") return showCompare(root, place);
  if (page === "beside") return showBeside(root, place);
  if (page === "envs") return showEnvs(root);
  if (page === "env") return showEnv(root, name, place);
  if (page === "start") return showStart(root, place);
  if (page === "run" && name) return chooseRunPage(root, name, tab, last, place);
  throw new ApiError(`There is no page “${place.path.join("/")}”.`, 404);
}

/**
 * @param {HTMLElement} root
 * @param {string} run
 * @param {string} tab
 * @param {string} last
 * @param {import("./router.js").Place} place
 */
async function chooseRunPage(root, run, tab, last, place) {
  if (tab === "") return showRun(root, run);
  if (tab === "tasks") return showTasks(root, run, place);
  if (tab === "rollouts") return showRollouts(root, run, place);
  if (tab === "rollout") return showRollout(root, run, Number(last), place);
  if (tab === "skill") return showSkill(root, run, place);
  if (tab === "rl") return showRl(root, run);
  if (tab === "settings") return showSettings(root, run);
  throw new ApiError(`A run has no page “${tab}”.`, 404);
}

/** @param {HTMLElement} root */
async function showPlace(root) {
  const turn = ++showing;
  shownPage?.leave?.();
  shownPage = null;
  setPageKeys([]);
  stopChanges();
  root.setAttribute("aria-busy", "true");
  const page = el("div", { class: "page" });
  try {
    const session = await getSession();
    const shown = await choosePage(page, session);
    if (turn !== showing) return shown.leave?.();
    shownPage = shown;
    setPageKeys(shown.keys ?? []);
    document.title = `${shown.title} · Ludus`;
    paintNav(session);
  } catch (error) {
    if (turn !== showing) return undefined;
    fill(
      page,
      el("h1", null, "This cannot be shown"),
      el("p", { class: "warning", role: "alert" }, error instanceof Error ? error.message : String(error)),
      el("p", null, link(makeHref(["runs"]), "All runs")),
    );
    document.title = "Ludus";
    if (!(error instanceof ApiError) && !(error instanceof TypeError)) throw error;
  }
  fill(root, page);
  if (turn > 1) root.focus({ preventScroll: true }); // a reader of the screen begins at the new page
  root.removeAttribute("aria-busy");
  if (!readPlace().query.get("turn")) window.scrollTo(0, 0);
  return undefined;
}

/** @param {import("./model.js").ViewSession} session */
function paintNav(session) {
  const [page = ""] = readPlace().path;
  const entries = /** @type {[string, string, string[]][]} */ ([
    isReport && session.single
      ? [runHref(session.single), "Run", ["", "run"]]
      : ["#/runs", "Runs", ["", "runs", "run", "compare", "beside"]],
    ...(isReport ? [] : [["#/envs", "Environments", ["envs", "env"]]]),
    ...(session.may_act ? [["#/start", "Start a run", ["start"]]] : []),
  ]);
  const nav = document.getElementById("nav");
  if (nav)
    fill(
      nav,
      entries.map(([href, text, pages]) => link(href, text, { "aria-current": pages.includes(page) ? "page" : null })),
    );
  const mode = document.getElementById("mode");
  if (mode)
    fill(
      mode,
      isReport
        ? null
        : session.may_act
          ? null
          : el("span", { class: "badge plain", title: session.why_not }, "read-only"),
    );
}

function begin() {
  const root = document.getElementById("page");
  const tools = document.getElementById("tools");
  if (!root || !tools) return;
  tools.append(
    button("?", () => showKeys(EVERYWHERE), { class: "plain", "aria-label": "Keys", title: "keys" }),
    makeThemeSwitch(),
  );
  fill(root, nothing("Loading…"));
  listenToKeys(EVERYWHERE);
  document.querySelector(".skip")?.addEventListener("click", (event) => {
    event.preventDefault(); // the address belongs to the pages
    root.focus();
  });
  window.addEventListener("hashchange", () => void showPlace(root));
  void showPlace(root);
}

begin();
