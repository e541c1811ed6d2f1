// The range of the charts is the URL's fragment, which is not sent to the server: the form's URL keeps it.

document.forms[0].action += location.hash;
